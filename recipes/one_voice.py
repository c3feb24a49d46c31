"""For recipes under the launcher: every worker trains, one of them prints and writes."""

import os
import sys

from gluon_svrg import workers


def is_first_worker() -> bool:
    """Return whether this process is to print and to write files; one of its own always is.

    The others are silent from here on.
    """
    is_first = workers.current().is_first
    if not is_first:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # for as long as the process lives
    return is_first
