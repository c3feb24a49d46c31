"""The errors of a worker that cannot continue because of another one."""


class WorkerError(RuntimeError):
    """Another worker has exited, has failed, or runs different code from this one."""


class PeerError(WorkerError):
    """Another worker has failed. It prints its own traceback, which shows the cause."""
