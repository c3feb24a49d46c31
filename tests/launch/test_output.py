"""Lines from pieces, what is kept of them, and what of that is told."""

import os

import pytest
from gluon_svrg.launch.output import STDERR, STDOUT, Log, Stream, Terminal, worth_telling
from gluon_svrg.launch.processes import Progress


class Written(Terminal):
    def __init__(self):
        super().__init__()
        self.data = {STDOUT: b"", STDERR: b""}

    def write(self, target, data):
        self.data[target] += data


def stream(tag="[w] "):
    terminal = Written()
    return Stream(terminal, STDOUT, tag, Log(None)), terminal.data


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_pieces_of_any_size_make_the_same_lines(size):
    text = b"one\n\nthree \xff\r\nfour"
    lines, written = stream()
    for begin in range(0, len(text), size):
        lines.feed(text[begin : begin + size])
    assert not written[STDOUT].endswith(b"four\n")
    lines.end()
    assert written[STDOUT] == b"[w] one\n[w] \n[w] three \xff\r\n[w] four\n"
    assert lines.last_lines == ["one", "", "three \ufffd", "four"]


def test_a_line_without_an_end_is_shown_before_it_fills_the_memory():
    lines, written = stream()
    for _ in range(100):
        lines.feed(b"x" * 1000)
    assert len(written[STDOUT]) > 60_000


def test_of_much_the_last_is_kept():
    lines, _ = stream()
    lines.feed(b"".join(b"%d\n" % i for i in range(1000)))
    assert lines.last_lines[-1] == "999"
    assert len(lines.last_lines) == 100


TRACEBACK = ["Traceback (most recent call last):", '  File "a.py"', "ValueError: a"]


def test_what_is_worth_telling():
    assert worth_telling(["before", *TRACEBACK]) == TRACEBACK
    cause = [*TRACEBACK, "", "During handling of the above exception", "", *TRACEBACK]
    assert worth_telling(["before", *cause]) == cause
    assert worth_telling([str(i) for i in range(50)]) == [str(i) for i in range(40, 50)]
    assert worth_telling([]) == []


def test_a_log_has_the_bytes_as_they_are_and_is_continued(tmp_path):
    path = tmp_path / "worker-0.log"
    for word in (b"first\n", b"second\xff"):
        log = Log(path)
        Stream(Written(), STDOUT, "[w] ", log).feed(word)
        log.close()
    content = path.read_bytes()
    assert content.count(b"--- ") == 2
    assert b"[w]" not in content
    assert content.endswith(b"second\xff")


def test_a_terminal_that_is_gone_is_left_alone():
    read, write = os.pipe()
    os.close(read)
    terminal = Terminal()
    terminal.write(write, b"x")
    terminal.write(write, b"y")
    os.close(write)


def test_progress():
    progress = Progress()
    assert not progress.is_training
    progress.feed(b"..")
    assert (progress.steps, progress.is_training) == (2, True)
    progress.feed(b".e")
    assert (progress.steps, progress.is_training) == (3, False)
    progress.feed(b"e.")
    assert (progress.steps, progress.is_training) == (4, True)
