"""Two machines that are two: each has a network and a name of its own; the cable can be cut."""

import os
import re
import secrets
import shutil
import subprocess
import time

import pytest
from launching import Launched
from machines import KEY, SOCKETS, WAIT, kill, ready, write_script

NAMES = ("gpu1", "gpu2")


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@pytest.fixture
def spaces():
    """Make two network namespaces, 10.77.0.1 and 10.77.0.2, with a cable between them."""
    if shutil.which("ip") is None or shutil.which("unshare") is None or os.geteuid():
        pytest.skip("namespaces need ip, unshare and root")
    mark = secrets.token_hex(3)
    made = [f"{name}-{mark}" for name in NAMES]
    try:
        for space in made:
            ip("netns", "add", space)
        ends = [f"v{mark}{i}" for i in (1, 2)]
        ip(
            *["link", "add", ends[0], "netns", made[0], "type", "veth"],
            *["peer", "name", ends[1], "netns", made[1]],
        )
        for i, (space, end) in enumerate(zip(made, ends, strict=True), 1):
            ip("-n", space, "address", "add", f"10.77.0.{i}/24", "dev", end)
            ip("-n", space, "link", "set", end, "up")
            ip("-n", space, "link", "set", "lo", "up")
        subprocess.run(["unshare", "-u", "true"], check=True, capture_output=True)
    except subprocess.CalledProcessError as error:
        _remove(made)
        pytest.skip(f"namespaces cannot be made here: {error.stderr.decode().strip()}")
    yield list(zip(made, ends, strict=True))
    _remove(made)


def _remove(spaces):
    for space in spaces:
        subprocess.run(["ip", "netns", "delete", space], check=False, capture_output=True)


def start(spaces, rank, folder, *arguments, **settings):
    """Start the line of a machine inside of its namespace, where it has its name."""
    name = f"hostname {NAMES[rank]} && exec " + '"$@"'
    prefix = ["ip", "netns", "exec", spaces[rank][0], "unshare", "-u", "sh", "-c", name, "sh"]
    own = ["--nodes", 2, "--node-rank", rank, "--master", "10.77.0.1:29500"]
    env = {"GLUON_SVRG_JOB_KEY": KEY}
    return Launched(folder, *own, *arguments, env=env, prefix=prefix, **settings)


def test_addresses_and_names(spaces, tmp_path):
    text = "print(os.environ['DMLC_NODE_HOST'], os.environ['GLUON_SVRG_ADDRESS'], flush=True)\n"
    path = write_script(tmp_path, f"{text}time.sleep(0.5)\nif rank: sys.exit(3)\ntime.sleep(60)")
    (tmp_path / "fake_server.py").write_text("import time\ntime.sleep(60)")
    line = (tmp_path, "-n", 1, "--max-restarts", 0, path)
    fast = {"constants": {"plan.SERVER": "fake_server"}}
    with start(spaces, 0, *line, **fast) as first, start(spaces, 1, *line, **fast) as second:
        assert (first.finish(), second.finish()) == (3, 3), first.err
    words = dict(re.findall(r"\[(worker \d)\] (\S+ 10.77.0.1):", first.out))
    assert words == {"worker 0": "10.77.0.1 10.77.0.1", "worker 1": "10.77.0.2 10.77.0.1"}
    assert re.search(r"launch: worker 1 on gpu2 \(process \d+\) ended with exit code 3", first.err)
    assert "exit code 3: see what gpu1 says" in second.err


def test_the_cable_is_cut(spaces, tmp_path):
    path = write_script(tmp_path, WAIT)
    line = ("-n", 1, *SOCKETS, "--wait", 6, "--host-timeout", 2, path)
    with start(spaces, 0, tmp_path, *line) as first, start(spaces, 1, tmp_path, *line) as second:
        ready(first)
        ip("-n", spaces[1][0], "link", "set", spaces[1][1], "down")
        begin = time.monotonic()
        assert (first.finish(), second.finish()) == (69, 75)
        assert time.monotonic() - begin < 15
    assert "launch: gpu2 is gone: not a word of it for 2 s (--host-timeout)" in first.err
    assert "launch: no word of the launcher for 2 s: all is ended here" in second.err


def test_an_agent_is_killed(spaces, tmp_path):
    path = write_script(tmp_path, WAIT)
    line = ("-n", 1, *SOCKETS, "--wait", 6, path)
    with start(spaces, 0, tmp_path, *line) as first, start(spaces, 1, tmp_path, *line) as second:
        ready(first)
        kill(second.process.pid)
        assert second.left() == []
        assert first.finish() == 69
    match = re.search(r"launch: gpu2 is gone: .*; seen within (\d\.\d\d) s, the others", first.err)
    assert match, first.err
    assert float(match[1]) < 1
