"""MaskLock and AugmentationLock: both gradients of a batch see the same random numbers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from operator import index
from typing import TypeVar

import mxnet as mx
from gluon_svrg.data.training_data import TrainingData
from gluon_svrg.events import State
from gluon_svrg.rng import has_drawn_since, seed_mxnet, worker_seed
from gluon_svrg.workers import SingleProcess, Workers

Result = TypeVar("Result")


class MaskLock:
    """Gives each batch one seed from one snapshot to the next.

    Between two snapshots the k-th batch of the full pass and of every epoch draws the same random
    numbers, at the current weights and at the snapshot's; after the next snapshot it draws others.
    So the samples with their masks are a finite sum, as SVRG asks (A. Defazio, L. Bottou, "On the
    ineffectiveness of variance reduced optimization for deep learning", NeurIPS 2019): averaged
    over the batches, taken in the same order, the corrected gradient is the full gradient.

    A seed is a pure function of (`seed`, snapshot, batch). Setting one costs about a millisecond,
    so :meth:`watch` finds out whether the network draws random numbers at all.

    Parameters
    ----------
    seed : int, optional
        Non-negative. By default drawn from MXNet's generator at the first snapshot, so that
        ``mx.random.seed`` decides it.
    is_on : bool
        If False, nothing is locked: each pass draws new random numbers.
    workers : Workers, optional
        The processes of the run. All use the first one's seed, the others together with their
        rank, so that their rows of a batch have different masks. By default a single process.

    Attributes
    ----------
    is_needed : bool
        Whether the network draws random numbers, as far as is known; False if `is_on` is.
    """

    def __init__(
        self, seed: int | None = None, is_on: bool = True, workers: Workers | None = None
    ) -> None:
        self._is_on = is_on
        self._workers = SingleProcess() if workers is None else workers
        self._seed = seed
        self._snapshot = 0
        self._releases = 0
        self.is_needed = is_on

    @property
    def snapshot(self) -> int:
        """The number of the snapshot, from 1; 0 before the first."""
        return self._snapshot

    def state_dict(self) -> State:
        """Return the state, for a checkpoint."""
        return {
            "seed": self._seed,
            "snapshot": self._snapshot,
            "releases": self._releases,
            "is_needed": self.is_needed,
        }

    def load_state_dict(self, state: State) -> None:
        """Continue from what :meth:`state_dict` returned."""
        seed = state["seed"]
        self._seed = None if seed is None else index(seed)
        self._snapshot, self._releases = index(state["snapshot"]), index(state["releases"])
        self.is_needed = self._is_on and state["is_needed"]

    def go_back_to(self, state: State) -> None:
        """Go back to an earlier state of this run, but keep a seed that has been drawn since."""
        self.load_state_dict(state | {"seed": self._seed})

    def skip(self, snapshots: int) -> None:
        """Count snapshots that were taken in an earlier run."""
        self._snapshot += snapshots

    def next_snapshot(self) -> None:
        """Begin a new snapshot: every batch gets a new seed."""
        if self._seed is None and self._is_on:
            drawn = int(mx.nd.random.randint(0, 2**31 - 1).asscalar())
            self._seed = self._workers.broadcast_object(drawn, "the seed of masks")
        self._snapshot += 1

    def lock(self, batch: int) -> None:
        """Seed MXNet on every device for the batch of this index, if the network draws masks."""
        if self.is_needed:
            self._seed_mxnet(self._snapshot, batch)

    def release(self) -> None:
        """Seed MXNet with a new seed for draws outside a batch, if the network draws masks.

        Without it, draws between two batches (an optimizer's noise, augmentation) would repeat
        from epoch to epoch, as the masks do.
        """
        if self.is_needed:
            self._releases += 1
            self._seed_mxnet(self._releases)

    def watch(self, run: Callable[[], Result], contexts: list[mx.Context]) -> Result:
        """Run ``run()`` as batch 0 and note in `is_needed` whether it draws random numbers.

        Without a GPU :func:`gluon_svrg.rng.has_drawn_since` knows; with one the lock is always
        needed. It is needed on all workers if it is on one: they all come here.
        """
        if not self._is_on:
            return run()
        self.is_needed = True
        if any(context.device_type not in ("cpu", "cpu_pinned") for context in contexts):
            self.lock(0)
            return run()
        self.lock(0)
        result = run()
        has_drawn = has_drawn_since(partial(self.lock, 0), contexts)
        self.release()
        self.is_needed = self._workers.all_any(has_drawn, "a look at masks")
        return result

    def _seed_mxnet(self, *key: int) -> None:
        seed_mxnet(worker_seed(self._workers.rank, self._seed), *key)


class AugmentationLock:
    """Gives each sample one augmentation from one full pass to the next.

    Parameters
    ----------
    policy : 'auto', 'require' or 'off'
        As `lock` of :class:`gluon_svrg.SVRGHandler`; with 'off' the data are locked only during the
        full pass. "Transform locking" is the term of Defazio & Bottou (2019).
    logger : logging.Logger
        Warns if the data cannot be locked.
    """

    def __init__(self, policy: str, logger: logging.Logger) -> None:
        self._policy = policy
        self._logger = logger
        self._warned_of: TrainingData | None = None

    def lock(self, data: TrainingData, draw: int) -> None:
        """Lock `data` to this draw, or warn once that it cannot be locked.

        Raises
        ------
        ValueError
            If the lock is required.
        """
        is_known, self._warned_of = data is self._warned_of, data
        if data.can_lock:
            data.lock(draw)
            return
        reason = "" if self._policy == "off" or is_known else data.reason_not_lockable()
        if reason and self._policy == "require":
            raise ValueError(
                f"lock='require', but train_data cannot be locked: {reason}; or give lock='auto'"
            )
        if reason:
            self._logger.warning(
                "SVRG's train_data cannot be locked: %s. If a sample is augmented differently in "
                "each pass, the full gradient belongs to other samples than the batches do: the "
                "corrected gradient is biased, and a gradient table would raise its variance",
                reason,
            )

    def lock_before_pass(self, data: TrainingData, draw: int) -> None:
        """Lock `data` some batches before the full pass.

        Raises
        ------
        ValueError
            As :meth:`lock`.
        """
        if self._policy != "off":
            self.lock(data, draw)

    def unlock_after_pass(self, data: TrainingData) -> None:
        """Unlock `data` after the full pass if the policy is 'off'."""
        if self._policy == "off":
            data.unlock()
