"""A rank that `mpiexec` has started: another process, with MXNet imported, does its work.

forked_rank.py ADDRESS SCRIPT [ARGUMENT ...]
"""

import os
import sys

from forked import fork

if __name__ == "__main__":
    address, *arguments = sys.argv[1:]
    descriptors = [1, 2, int(os.environ["PMI_FD"])]
    end, pid = fork(bytes.fromhex(address), arguments, os.environ, descriptors)
    code = int(end.recv(32))
    if code < 0:
        os.kill(os.getpid(), -code)
    sys.stdout.flush()
    os._exit(code)
