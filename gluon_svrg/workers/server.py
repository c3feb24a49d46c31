"""``python -m gluon_svrg.workers.server``: ps-lite's server or scheduler, which unpickles nothing.

The role is in ``DMLC_ROLE``, as for MXNet's own, which is one line: ``import mxnet``. MXNet's runs
``pickle.loads`` on what anybody sends to its open port. This one refuses: nobody needs it here,
since over workers the optimizer runs in the workers. It ends as MXNet's does, when the first worker
has ended.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys

ROLES = ("scheduler", "server")


def main() -> int:
    """Run what ``DMLC_ROLE`` says until the workers have ended."""
    role = os.environ.pop("DMLC_ROLE", None)
    if role not in ROLES:
        print(
            f"DMLC_ROLE must be one of {', '.join(ROLES)}, got {role!r}: it says what this "
            "process is; python -m gluon_svrg.launch sets it",
            file=sys.stderr,
        )
        return 2
    # The workers need it until they have ended, and a terminal tells all to end at once.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Not at the top: in one of these roles MXNet's import runs its own server, and never returns.
    importlib.import_module("gluon_svrg._mxnet.store").run_server(role, _refuse)
    return 0


def _refuse(command: int, body: bytes) -> None:
    print(
        f"gluon_svrg.workers.server: refused command {command} ({len(body)} bytes): this server "
        "adds up arrays and unpickles nothing; make the trainer with update_on_kvstore=False",
        file=sys.stderr,
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
