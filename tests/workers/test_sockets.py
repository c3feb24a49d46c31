"""SocketWorkers: what they gather, and how they end; several of them in one process, by threads."""

import ctypes
import os
import secrets
import signal
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import mxnet as mx
import numpy as np
import pytest
from gluon_svrg.workers import SocketWorkers, WorkerError, connection, ends
from ports import free_port

KEY = b"a key"
PR_GET_PDEATHSIG = 2


def together(size, *functions, timeout=20.0, keys=(), address=None):
    """Let `size` workers each call its function, the last one those that have none.

    Returns what each has returned, or the WorkerError that it has raised.
    """
    address = address or ("127.0.0.1", free_port())

    def run(rank):
        try:
            key = keys[rank] if keys else KEY
            own = SocketWorkers(rank, size, address, key, timeout)
            result = functions[min(rank, len(functions) - 1)](own)
        except WorkerError as error:
            return error
        except BaseException as error:
            own.abort(repr(error))
            raise
        own.close()
        return result

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size)))


@pytest.mark.parametrize("size", [2, 3, 5])
def test_all_gather_what_each_gives(size):
    def gathers(own):
        plain = own.gather_plain({"rank": own.rank, "none": None, "é": [0.1, True]}, "a")
        first = own.of_first(own.rank + 10, "b")
        total = own.total(0.1 * (own.rank + 1), "c")
        data = own.gather(bytes([own.rank]) * own.rank, "d")
        return plain, first, total, data, own.any(own.rank == 1, "e"), own.any(False, "f")

    results = together(size, gathers)
    plain, first, total, data, one, none = results[0]
    assert results == [results[0]] * size
    assert plain == [{"rank": rank, "none": None, "é": [0.1, True]} for rank in range(size)]
    assert (first, one, none) == (10, True, False)
    assert total == sum(0.1 * (rank + 1) for rank in range(size))
    assert data == [bytes([rank]) * rank for rank in range(size)]


def test_messages_of_many_megabytes():
    def gathers(own):
        data = own.gather(bytes([own.rank + 1]) * 50_000_000, "test")
        return [(len(part), part[:1], part[-1:]) for part in data]

    expected = [(50_000_000, bytes([rank + 1]), bytes([rank + 1])) for rank in range(2)]
    assert together(2, gathers) == [expected] * 2


def test_sums_are_added_by_rank_and_broadcasts_keep_every_bit():
    values = [np.random.RandomState(rank).standard_normal(100) for rank in range(3)]
    bits = np.array([np.nan, -0.0, np.inf, 5e-324])

    def sums(own):
        arrays = [
            mx.nd.array(values[own.rank], dtype="float64"),
            mx.nd.array(np.full((2, 2), 2**60 + own.rank), dtype="int64"),
        ]
        own.sum(arrays)
        first = mx.nd.array(bits if own.is_first else np.zeros(4), dtype="float64")
        own.broadcast([first])
        return [array.asnumpy().tobytes() for array in (*arrays, first)]

    total = (values[0] + values[1]) + values[2]
    whole = np.full((2, 2), 3 * 2**60 + 3)
    assert together(3, sums) == [[total.tobytes(), whole.tobytes(), bits.tobytes()]] * 3


def test_workers_at_different_places_are_an_error_on_all():
    def parts(own):
        own.gather(b"", "step 3" if own.is_first else "the end of the epoch")

    for error in together(3, parts):
        assert "the workers have parted: worker 0 is at 'step 3', worker 1 is at 'the end of" in (
            str(error)
        )
        assert "every worker has to run the same lines" in str(error)


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_who_fails_is_heard_by_those_who_gather(failing):
    """Worker 1 never comes: the failure of another is not to wait for it."""
    done = threading.Event()

    def runs(own):
        if own.rank == failing:
            own.abort("ValueError: no data")
            done.set()
            return "aborted"
        if own.rank == 1:
            done.wait()
            time.sleep(0.3)
        try:
            own.gather(b"", "step")
        except WorkerError as first:
            with pytest.raises(WorkerError, match="ValueError: no data"):
                own.gather(b"", "the end of the script")
            return str(first)

    expected = [f"worker {failing} has failed: ValueError: no data"] * 3
    expected[failing] = "aborted"
    assert together(3, runs) == expected


def test_who_has_said_that_it_waits_keeps_nobody_waiting():
    """Worker 1 has waited in a sum that is over, and says nothing more: worker 2 is heard."""
    done = threading.Event()

    def runs(own):
        if own.rank == 1:
            own._say_waiting(0)
            done.wait(10)
        elif own.rank == 2:
            time.sleep(0.3)
            own.abort("ValueError: no data")
        else:
            with pytest.raises(WorkerError, match="worker 2 has failed: ValueError: no data"):
                own.gather(b"", "step")
            done.set()

    assert together(3, runs) == [None] * 3


@pytest.mark.parametrize("gone", [0, 1])
def test_who_dies_is_gone(gone):
    def runs(own):
        if own.rank == gone:
            own.close()  # as the system does
        else:
            with pytest.raises(WorkerError, match=f"worker {gone} is gone"):
                own.gather(b"", "step")

    assert together(2, runs) == [None] * 2


def test_who_dies_in_the_middle_of_a_message_is_gone():
    def runs(own):
        if own.rank == 1:
            own._peers[0]._socket.sendall(connection._LENGTH.pack(1000) + b"Mstep\0begun")
            own.close()
        else:
            with pytest.raises(WorkerError, match="worker 1 is gone: its own output"):
                own.gather(b"", "step")

    assert together(2, runs) == [None] * 2


def test_strangers_keep_nobody_waiting():
    """One says nothing, one talks nonsense, one claims to be long: the start takes no longer."""
    address = ("127.0.0.1", free_port())
    strangers = []

    def disturb():
        texts = [b"", b"GET / HTTP/1.0\r\n\r\n", b"\xff" * 40]
        for text in texts:
            while True:
                try:
                    strangers.append(socket.create_connection(address, 5))
                    break
                except OSError:
                    time.sleep(0.01)
            strangers[-1].sendall(text)

    def run(rank):
        if rank:
            disturber.join()
        own = SocketWorkers(rank, 2, address, KEY, 20.0)
        result = own.gather_plain(rank, "test")
        own.close()
        return result

    disturber = threading.Thread(target=disturb)
    disturber.start()
    begin = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(run, range(2))) == [[0, 1]] * 2
    assert time.monotonic() - begin < connection._PATIENCE
    for stranger in strangers:
        stranger.close()


def test_another_key_is_told_to_who_has_it():
    first, second = together(2, lambda own: None, timeout=1.0, keys=[KEY, b"another"])
    assert "worker 1 has not come within 1 s" in str(first)
    assert "has another key than worker 1: start all workers of a run by one launcher" in (
        str(second)
    )


def test_a_listener_that_does_not_know_the_key_is_not_trusted():
    listener = connection.listen("127.0.0.1", 0, 1)
    listener.settimeout(5)

    def answer():
        other = connection.Connection(listener.accept()[0])
        other.send(secrets.token_bytes(32))
        other.receive()
        other.send(secrets.token_bytes(32))
        other.close()

    thread = threading.Thread(target=answer)
    thread.start()
    with pytest.raises(WorkerError, match="another key than worker 1"):
        SocketWorkers(1, 2, listener.getsockname(), KEY, 5.0)
    thread.join()
    listener.close()


def test_a_listener_that_ends_while_it_is_asked_has_no_other_key():
    """The next one is tried."""
    listener = connection.listen("127.0.0.1", 0, 1)
    listener.settimeout(5)

    def answer():
        other = connection.Connection(listener.accept()[0])
        other.send(secrets.token_bytes(32))
        other.receive()
        other.close()
        return SocketWorkers(0, 2, listener.getsockname(), KEY, 5.0, listener=listener)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(answer)
        second = SocketWorkers(1, 2, listener.getsockname(), KEY, 5.0)
        others = pool.submit(second.gather_plain, 1, "test")
        assert first.result().gather_plain(0, "test") == [0, 1]
        assert others.result() == [0, 1]
    first.result().close()
    second.close()


def test_nobody_there_and_a_port_that_is_taken():
    address = ("127.0.0.1", free_port())
    with pytest.raises(WorkerError, match=r"does not answer at 127\.0\.0\.1:\d+ within 0\.3 s"):
        SocketWorkers(1, 2, address, KEY, 0.3)
    with pytest.raises(WorkerError, match=r"worker 1 has not come within 0\.3 s: look at its"):
        SocketWorkers(0, 2, address, KEY, 0.3)
    with (
        connection.listen(*address, 1),
        pytest.raises(WorkerError, match=r"cannot listen at .*give another port"),
    ):
        SocketWorkers(0, 2, address, KEY, 0.3)


def test_a_signal_does_not_disturb_who_waits():
    heard = []
    before = signal.signal(signal.SIGUSR1, lambda *_: heard.append(True))
    address = ("127.0.0.1", free_port())

    def other():
        own = SocketWorkers(1, 2, address, KEY)
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.2)
        own.barrier("test")
        own.close()

    thread = threading.Thread(target=other)
    thread.start()
    try:
        own = SocketWorkers(0, 2, address, KEY)
        own.barrier("test")
        assert heard == [True]
        own.close()
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forks_are_touched_only_where_there_are_others(monkeypatch):
    """A daemon, or a pool of another library, outlives the process that has imported this one."""
    hooks = []
    monkeypatch.setattr(os, "register_at_fork", lambda **hook: hooks.append(hook))
    monkeypatch.setattr(ends.atexit, "register", lambda _: None)
    for name in ("excepthook", "exit"):
        monkeypatch.setattr(sys, name, getattr(sys, name))  # which puts it back
    child = os.fork()  # this process has imported `ends`, and is alone
    if not child:
        own_signal = ctypes.c_int()
        ends._LIBC.prctl(PR_GET_PDEATHSIG, ctypes.byref(own_signal), 0, 0, 0)
        os._exit(own_signal.value)
    assert os.waitpid(child, 0)[1] == 0
    ends.watched(lambda: None)
    assert hooks == [{"before": ends._before_fork, "after_in_child": ends._after_fork_in_child}]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_process_that_is_forked_off_holds_no_connection_and_dies_with_its_parent():
    address = ("127.0.0.1", free_port())
    reader, writer = os.pipe()
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda rank: SocketWorkers(rank, 2, address, KEY), range(2)))
    ends._before_fork()
    child = os.fork()
    if not child:
        ends._after_fork_in_child()  # as `watched` has it
        own_signal = ctypes.c_int()
        ends._LIBC.prctl(PR_GET_PDEATHSIG, ctypes.byref(own_signal), 0, 0, 0)
        left = [len(own._peers) for own in both]
        os.write(writer, f"{left} {own_signal.value}".encode())
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    try:
        assert os.read(reader, 100) == b"[0, 0] 9"
        both[1].close()
        with pytest.raises(WorkerError, match="worker 1 is gone"):
            both[0].gather(b"", "test")  # while the child lives
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reader)
        os.close(writer)
