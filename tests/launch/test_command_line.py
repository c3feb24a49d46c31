"""What the command line takes and refuses: value, reason, way out; nothing is started."""

import os
import sys

import pytest
from gluon_svrg import _cores
from gluon_svrg.launch import job
from gluon_svrg.launch.__main__ import new_parser, parse
from launching import launch

pytestmark = pytest.mark.full


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text("print('hello')")
    return str(path)


def test_all_options(script, tmp_path):
    given = "-n 3 --max-restarts 0 --progress-timeout 1.5 --threads 3 --wait 7 --min-workers 2"
    given += " --ssh my_ssh --log-dir"
    (tmp_path / "hosts").write_text("node1:2  # two of them\n\nnode2\n")
    own = ["-n", "7", "--help", "--", "x"]
    line = [*given.split(), str(tmp_path / "a/b"), "--hosts", str(tmp_path / "hosts"), script, *own]
    options = parse(line)
    assert (options.workers, options.max_restarts, options.progress_timeout) == (3, 0, 1.5)
    assert (options.threads, options.wait, options.min_workers) == (3, 7.0, 2)
    assert (options.hosts, options.ssh) == ({"node1": 2, "node2": 1}, "my_ssh")
    assert (tmp_path / "a" / "b").is_dir()
    assert options.command == [script, "-n", "7", "--help", "--", "x"]


def test_defaults(script):
    options = parse(["-n", "2", script])
    assert (options.workers, options.max_restarts, options.progress_timeout) == (2, 3, 300.0)
    assert (options.threads, options.log_dir, options.hosts) == (None, None, {})


def test_auto(script, tmp_path, monkeypatch):
    monkeypatch.delenv("SLURM_NTASKS", raising=False)
    assert parse(["-n", "auto", script]).workers == _cores.usable_cores()
    monkeypatch.setenv("SLURM_NTASKS", "6")
    assert parse(["-n", "auto", script]).workers == 6
    (tmp_path / "hosts").write_text("node1:4\nnode2:3\n")
    assert parse(["-n", "auto", "--hosts", str(tmp_path / "hosts"), script]).workers == 7


def test_a_module():
    assert parse(["-n", "2", "-m", "json.tool", "-x"]).command == ["-m", "json.tool", "-x"]


REFUSED = [
    (["-n", "0"], "--workers must be a whole number from 1 on, got '0': that many processes train"),
    (["-n", "two"], "--workers must be a whole number from 1 on, got 'two'"),
    (["-n", "2", "--threads", "0"], "--threads must be a whole number from 1 on, got '0'"),
    (["-n", "2", "--max-restarts", "-1"], "--max-restarts must be a whole number from 0 on"),
    (["-n", "2", "--progress-timeout", "0"], "must be a positive number of seconds, got '0': give"),
    (["-n", "2", "--progress-timeout", "nan"], "must be a positive number of seconds, got 'nan'"),
    (["-n", "2", "--wait", "-1"], "--wait must be a positive number of seconds, got '-1'"),
    (["-n", "2", "--min-workers", "1"], "--min-workers needs --hosts: it is for jobs that"),
    (["-n", "2", "--log-dir", "/dev/null/x"], "--log-dir cannot be made, got '/dev/null/x'"),
    (["-n", "2", "--hosts", "/no/such"], "--hosts '/no/such' cannot be read"),
    (["-n", "2", "-s", "1"], "unrecognized arguments: -s"),
    ([], "-n/--workers"),
]
HOSTS = [
    ("", "has no host: write one per line"),
    ("# none\n", "has no host"),
    ("node1 slots=4\n", "line 1: a host is 'name' or 'name:workers', got 'node1 slots=4'"),
    ("me@node1\n", "got 'me@node1'; put user, port and key into ~/.ssh/config"),
    ("node1\nnode1\n", "line 2: the host 'node1' is listed twice; write 'node1:2'"),
    ("node1:0\n", "got 'node1:0'"),
    ("-oProxyCommand=x\n", "got '-oProxyCommand=x'"),
    ("-F@x\n", "got '-F@x'"),
    ("-W@a:2\n", "got '-W@a:2'"),
    ("$(x)\n", "got '$(x)'"),
    ("node1\n", "-n 2 is more than the workers of all hosts (node1:1): give -n auto, or"),
]


@pytest.mark.parametrize(("text", "said"), HOSTS)
def test_hosts_that_are_refused(script, tmp_path, capsys, text, said):
    (tmp_path / "hosts").write_text(text)
    with pytest.raises(SystemExit) as ended:
        parse(["-n", "2", "--hosts", str(tmp_path / "hosts"), script])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_a_program_for_ssh_that_is_not_there(script, tmp_path):
    (tmp_path / "hosts").write_text("node1:2\n")
    arguments = ["-n", "2", "--hosts", str(tmp_path / "hosts"), "--ssh", "/no/ssh", script]
    with pytest.raises(ValueError, match="--ssh '/no/ssh' is not installed, but the hosts"):
        job.Job(parse(arguments))
    (tmp_path / "hosts").write_text("localhost:2\n")
    job.Job(parse(arguments))


@pytest.mark.parametrize("missing", ["mpi4py", "mpiexec"])
def test_without_mpi_several_workers_say_what_to_install(script, monkeypatch, missing):
    if missing == "mpi4py":
        monkeypatch.setitem(sys.modules, "mpi4py", None)
    else:
        monkeypatch.setattr(job.shutil, "which", lambda *_, **__: None)
    with pytest.raises(ValueError, match=rf"{missing}.* is not installed: pip install 'gluon-svrg"):
        job.Job(parse(["-n", "2", script]))
    job.Job(parse(["-n", "1", script]))


@pytest.mark.parametrize(("arguments", "said"), REFUSED)
def test_what_is_refused(script, capsys, arguments, said):
    with pytest.raises(SystemExit) as ended:
        parse([*arguments, script])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_without_a_script(capsys):
    with pytest.raises(SystemExit):
        parse(["-n", "2"])
    assert capsys.readouterr().err.endswith("arguments are required: script\n")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(script, tmp_path, capsys):
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(SystemExit):
        parse(["-n", "2", "--log-dir", str(tmp_path / "closed"), script])
    assert "--log-dir cannot be written into" in capsys.readouterr().err


SCRIPTS = [
    ("missing.py", None, "cannot be read: No such file or directory; pass a path that exists"),
    (
        "wrong.py",
        b"for i in (:\n",
        "is not valid Python: invalid syntax (wrong.py, line 1); fix it",
    ),
    ("zero.py", b"a = '\0'", "is not valid Python"),
    ("folder", "folder", "is a folder without a __main__.py"),
]


@pytest.mark.parametrize(("name", "content", "said"), SCRIPTS)
def test_a_script_that_cannot_be_started(tmp_path, capsys, name, content, said):
    if content == "folder":
        (tmp_path / name).mkdir()
    elif content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(SystemExit) as ended:
        parse(["-n", "2", str(tmp_path / name)])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("name", ["-", "/dev/stdin", "/dev/fd/0", "/dev/null"])
def test_a_script_that_can_be_read_once(capsys, name):
    with pytest.raises(SystemExit) as ended:
        parse(["-n", "2", name])
    assert ended.value.code == 2
    assert f"{name!r} can be read only once, but every worker reads it" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["no_such_module_here", "no_such_package.inside", "a b"])
def test_a_module_that_is_not_there(capsys, name):
    with pytest.raises(SystemExit) as ended:
        parse(["-n", "2", "-m", name])
    assert ended.value.code == 2
    assert f"the module {name!r} cannot be found" in capsys.readouterr().err


def test_a_script_may_have_warnings_and_encodings(tmp_path):
    path = tmp_path / "script.py"
    path.write_bytes(b"# -*- coding: latin-1 -*-\na = '\xe4\\d' is 1\n")
    assert parse(["-n", "2", str(path)]).command == [str(path)]


def test_help_has_examples_and_exit_codes():
    text = new_parser().format_help()
    assert "examples:" in text
    assert "exit codes:" in text


def test_refusals_start_nothing(tmp_path):
    done = launch(tmp_path, "-n", 2, "missing.py")
    assert done.code == 2
    assert done.out == ""
    assert "Traceback" not in done.err
