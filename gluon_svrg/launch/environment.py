"""What the launcher tells a process by its environment."""

from __future__ import annotations

RANK, SIZE = "GLUON_SVRG_RANK", "GLUON_SVRG_WORKERS"
"""The worker's number, from 0, and how many there are."""

ADDRESS, KEY = "GLUON_SVRG_ADDRESS", "GLUON_SVRG_KEY"
"""Where the first worker listens (``host:port``), and what they recognise each other by (hex)."""

ENGINE = "GLUON_SVRG_ENGINE"
"""What adds up the arrays: 'dist_sync' (the default), 'mpi' or 'sockets'."""

EXACT = "GLUON_SVRG_EXACT"
"""'1' (the default) or '0': whether sums do not depend on who comes first."""

ATTEMPT = "GLUON_SVRG_ATTEMPT"
"""How often the job was started before this time; above 0, `fit` resumes by itself."""

PROGRESS = "GLUON_SVRG_PROGRESS"
"""The descriptor of a pipe into which a worker writes a byte at each step: b'.', or b'e' at the end
of a `fit`, from when on nobody waits for it."""

JOB_KEY = "GLUON_SVRG_JOB_KEY"
"""By what the machines of a job recognise each other; processes of the job do not get it."""

PEER_FAILED = 75
"""The exit code of a worker that ended because another one had failed (EX_TEMPFAIL)."""

SERVER_ENVIRONMENT = {
    "MALLOC_PERTURB_": "255",
    "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0",
}
"""What a server of ps-lite (not the scheduler) needs in its environment, from its start on: fresh
memory is zero with it. MXNet's server never initialises `multi_precision_`, and adds up float64 as
float32 if the byte that it finds there is not zero. Both are started by
``python -m gluon_svrg.workers.server``, with their role in ``DMLC_ROLE``."""
