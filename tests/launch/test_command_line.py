"""What the command line takes and refuses: value, reason, way out; nothing is started."""

import os
import sys

import pytest
from gluon_svrg.launch.__main__ import new_parser, parse
from launching import launch


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text("print('hello')")
    return str(path)


def test_all_options(script, tmp_path):
    given = "-n 4 -s 2 --engine sockets --max-restarts 0 --no-exact --progress-timeout 1.5"
    given += " --threads 3 --env A=1 --env B=x=y --log-dir"
    own = ["-n", "7", "--help", "--", "x"]
    options = parse([*given.split(), str(tmp_path / "a/b"), script, *own])
    assert (options.workers, options.servers, options.engine) == (4, 2, "sockets")
    assert (options.max_restarts, options.progress_timeout, options.threads) == (0, 1.5, 3)
    assert options.exact is False
    assert options.variables == {"A": "1", "B": "x=y"}
    assert (tmp_path / "a" / "b").is_dir()
    assert options.command == [script, "-n", "7", "--help", "--", "x"]


def test_defaults(script):
    options = parse(["-n", "2", script])
    assert (options.workers, options.servers, options.engine) == (2, 1, "dist_sync")
    assert (options.max_restarts, options.progress_timeout, options.threads) == (3, 600.0, None)
    assert options.exact is True
    assert options.log_dir is None


def test_a_module():
    assert parse(["-n", "2", "-m", "json.tool", "-x"]).command == ["-m", "json.tool", "-x"]


REFUSED = [
    (["-n", "0"], "--workers must be a whole number from 1 on, got '0'"),
    (["-n", "two"], "--workers must be a whole number from 1 on, got 'two'"),
    (["-n", "2", "-s", "0"], "--servers must be a whole number from 1 on, got '0': somebody has"),
    (["-n", "2", "--threads", "0"], "--threads must be a whole number from 1 on, got '0'"),
    (["-n", "2", "--max-restarts", "-1"], "--max-restarts must be a whole number from 0 on"),
    (["-n", "2", "--progress-timeout", "0"], "must be a positive number of seconds, got '0': give"),
    (["-n", "2", "--progress-timeout", "nan"], "must be a positive number of seconds, got 'nan'"),
    (["-n", "2", "--env", "A"], "--env must be NAME=VALUE, got 'A': for instance"),
    (["-n", "2", "--env", "1A=3"], "--env must be NAME=VALUE, got '1A=3'"),
    (["-n", "2", "--env", "DMLC_ROLE=server"], "--env must leave DMLC_ROLE alone"),
    (["-n", "2", "--env", "GLUON_SVRG_RANK=1"], "--env must leave GLUON_SVRG_RANK alone"),
    (["-n", "2", "--log-dir", "/dev/null/x"], "--log-dir cannot be made, got '/dev/null/x'"),
    (["-n", "2", "--engine", "nccl"], "invalid choice: 'nccl'"),
    ([], "-n/--workers"),
]


def test_mpi_that_is_not_installed(script, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(SystemExit):
        parse(["-n", "2", "--engine", "mpi", script])
    assert "--engine mpi needs mpi4py and MPICH: pip install 'gluon-svrg[mpi]'" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(("arguments", "said"), REFUSED)
def test_what_is_refused(script, capsys, arguments, said):
    with pytest.raises(SystemExit) as ended:
        parse([*arguments, script])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(script, tmp_path, capsys):
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(SystemExit):
        parse(["-n", "2", "--log-dir", str(tmp_path / "closed"), script])
    assert "--log-dir cannot be written into" in capsys.readouterr().err


SCRIPTS = [
    ("missing.py", None, "cannot be read: No such file or directory; name one that is there"),
    ("wrong.py", b"for i in (:\n", "is no Python: invalid syntax (wrong.py, line 1); mend it"),
    ("zero.py", b"a = '\0'", "is no Python"),
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
    assert f"{name!r} can be read once, and every worker has to read it" in capsys.readouterr().err


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
