"""Ctrl-C in a recipe: it reports what there is, and its exit code says that it was interrupted."""

from __future__ import annotations

from typing import Any

import gluon_svrg as gs

EXIT_CODE = 130  # of a program that was ended by SIGINT, by convention


class Interrupted(KeyboardInterrupt):
    """A signal has ended a training; `run` is what it had reached."""

    def __init__(self, run: Any) -> None:
        super().__init__()
        self.run = run


def raise_if_interrupted(result: gs.FitResult, run: Any) -> None:
    """Raise Interrupted if a signal has ended the training with this result."""
    if result.stop_reason is gs.StopReason.SIGNAL:
        raise Interrupted(run)
