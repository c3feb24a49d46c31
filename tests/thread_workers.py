"""Workers that are threads of one process, for tests of what they say to each other."""

import threading

from gluon_svrg.workers import Workers


class ThreadWorkers(Workers):
    """One of several threads, which share a board on which each writes what it gives."""

    def __init__(self, rank, size, board, barrier):
        super().__init__(rank, size)
        self._board, self._barrier = board, barrier

    def all_gather_bytes(self, data, label):
        self._board[self.rank] = (label, bytes(data))
        self._barrier.wait(timeout=20)
        places, parts = zip(*self._board, strict=True)
        self._barrier.wait(timeout=20)
        assert len(set(places)) == 1, places
        return list(parts)

    def all_reduce(self, arrays):
        raise NotImplementedError

    def broadcast(self, arrays):
        raise NotImplementedError

    def abort(self, reason):
        self._barrier.abort()


def on_threads(size, function):
    """Call ``function(workers)`` on as many threads; return what each returned, or raised."""
    board, barrier = [None] * size, threading.Barrier(size)
    results = [None] * size

    def run(rank):
        try:
            results[rank] = function(ThreadWorkers(rank, size, board, barrier))
        except Exception as e:
            results[rank] = e

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert not any(thread.is_alive() for thread in threads)
    return results
