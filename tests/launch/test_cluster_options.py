"""Which machines the command line takes, and its mistakes: one sentence each."""

import pytest
from gluon_svrg.launch.__main__ import parse
from gluon_svrg.launch.hosts import SILENCE, Host, read_hosts, resolve, unreachable

KEY = "GLUON_SVRG_JOB_KEY"
LINE = ["--nodes", "3", "--node-rank", "1", "--master", "node0:29500"]


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.setenv(KEY, "0123456789abcdef")
    path = tmp_path / "script.py"
    path.write_text("print('hello')")
    return str(path)


def hosts_file(tmp_path, text):
    path = tmp_path / "hosts.txt"
    path.write_text(text)
    return path


def test_one_machine_without_any_of_it(script):
    assert parse(["-n", "2", script]).across is None


def test_the_same_line_on_each(script):
    across = parse([*LINE, "--address", "127.0.0.3", "--wait", "7", "-n", "2", script]).across
    assert (across.nodes, across.rank, across.master) == (3, 1, ("node0", 29500))
    assert (across.address, across.wait, across.silence) == ("127.0.0.3", 7.0, SILENCE)
    assert across.key == b"0123456789abcdef"
    assert not across.hosts
    assert "0123456789" not in repr(across)


def test_over_ssh(script, tmp_path, monkeypatch):
    monkeypatch.delenv(KEY)
    path = hosts_file(tmp_path, "node1\n")
    given = ["--hosts", str(path), "--ssh", "ssh -p 2222 -i 'a key'", "--host-timeout", "9"]
    across = parse([*given, "-n", "2", script]).across
    assert across.hosts == [Host("node1")]
    assert across.ssh == ["ssh", "-p", "2222", "-i", "a key"]
    assert across.silence == 9.0


def test_hosts(tmp_path):
    text = "# all\nnode1\n\n  me@node2.example slots=3 # big\n10.0.0.4 address=eth1.node4 slots=1\n"
    assert read_hosts(hosts_file(tmp_path, text)) == [
        Host("node1"),
        Host("me@node2.example", 3),
        Host("10.0.0.4", 1, "eth1.node4"),
    ]
    assert Host("me@node2").name == "node2"


HOSTS = [
    ("", "names no host: write one a line"),
    ("# nothing\n\n", "names no host"),
    ("a\nb slots=0\n", r"line 2 of .* has 'slots=0', which is neither slots=N, from 1 on"),
    ("a slots=two\n", "line 1 of .* has 'slots=two'"),
    ("a 2\n", "line 1 of .* has '2', which is neither"),
    ("a address=\n", "line 1 of .* has 'address='"),
    ("a\n\nme@a slots=2\n", "line 3 of .* has 'a' once more: a host has one line"),
    ("-oProxyCommand=x\n", "line 1 of .* must begin with a host, got '-oProxyCommand=x'"),
    ("a;b\n", "must begin with a host, got 'a;b'"),
    ("me@-x\n", "must begin with a host"),
]


@pytest.mark.parametrize(("text", "said"), HOSTS)
def test_mistakes_in_the_file_of_hosts(tmp_path, text, said):
    with pytest.raises(ValueError, match=said):
        read_hosts(hosts_file(tmp_path, text))


def test_a_file_of_hosts_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match=r"cannot be read: No such file or directory; name a file"):
        read_hosts(tmp_path / "missing")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ValueError, match="cannot be read: it is no text"):
        read_hosts(tmp_path / "binary")


REFUSED = [
    (["--nodes", "2"], "and --node-rank is missing: as in"),
    (["--nodes", "2", "--node-rank", "0"], "and --master is missing"),
    (["--address", "127.0.0.1"], "and --nodes is missing"),
    ([*LINE, "--node-rank", "3"], "--node-rank must be from 0 to 2, got 3"),
    ([*LINE, "--node-rank", "-1"], "--node-rank must be from 0 to 2, got -1"),
    ([*LINE, "--nodes", "0"], "--nodes must be a whole number from 1 on, got 0"),
    ([*LINE, "--master", "node0"], "--master must be HOST:PORT, got 'node0'"),
    ([*LINE, "--master", "node0:0"], "--master must be HOST:PORT, got 'node0:0'"),
    ([*LINE, "--master", ":29500"], "--master must be HOST:PORT, got ':29500'"),
    ([*LINE, "--address", "no such name"], "--address must be an IPv4 address of this machine"),
    ([*LINE, "--wait", "0"], "--wait must be a positive number of seconds, got 0"),
    ([*LINE, "--host-timeout", "0.5"], "--host-timeout must be at least 1 s, got 0.5"),
    ([*LINE, "--ssh", "ssh -v"], "--ssh needs --hosts, got 'ssh -v' alone"),
    ([*LINE, "--hosts", "x"], "--hosts and --nodes are two ways to name the machines"),
    (["--hosts", "/missing"], "--hosts '/missing' cannot be read"),
    (["--env", f"{KEY}=x"], f"--env must leave {KEY} alone"),
]


@pytest.mark.parametrize(("given", "said"), REFUSED)
def test_what_is_refused(script, capsys, given, said):
    with pytest.raises(SystemExit) as ended:
        parse(["-n", "2", *given, script])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(("key", "got"), [(None, "it is not set"), ("short", "got 5 characters")])
def test_the_key_is_missing(script, capsys, monkeypatch, key, got):
    monkeypatch.delenv(KEY)
    if key is not None:
        monkeypatch.setenv(KEY, key)
    with pytest.raises(SystemExit) as ended:
        parse([*LINE, "-n", "2", script])
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert f"{KEY} must have at least 16 characters in the environment of every machine, {got}" in (
        err
    )
    assert "openssl rand -hex 32" in err


def test_addresses():
    assert resolve("127.0.0.3") == "127.0.0.3"
    assert resolve("no such name") is None
    assert unreachable(["127.0.0.2", "127.0.0.3"]) is None
    assert unreachable(["10.0.0.2", "10.0.0.3"]) is None
    number, why = unreachable(["10.0.0.2", "127.0.1.1"])
    assert number == 1
    assert "has the address 127.0.1.1, at which no other machine reaches it" in why
