"""Recursive variance reduction and its controls, each as a step on a batch.

The recursive methods are the loops of docs/howto/recursive.md, on any network. A method counts the
gradient evaluations that it needs; where the loop computes one that its paper saves, that one is
not counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import evidence_common as common
import gluon_svrg as gs
import mxnet as mx
import numpy as np
from gluon_svrg.svrg import FullGradient, Snapshot
from mxnet import gluon
from mxnet.ndarray import NDArray

BETAS = {"beta1": 0.95, "beta2": 0.99}  # MARS' own
GAMMA = 0.025
Batch = Sequence[NDArray]


class QHAdamW(gs.AdamW):
    """AdamW whose step goes along (1 - gamma) m + gamma g: no past gradient but the average.

    J. Ma, D. Yarats, "Quasi-hyperbolic momentum and Adam for deep learning", ICLR 2019, with
    nu1 = 1 - gamma and nu2 = 1.
    """

    def __init__(self, *args: Any, gamma: float = GAMMA, **kwargs: Any) -> None:
        super().__init__(*args, use_fused_step=False, **kwargs)
        self.gamma = gamma

    def step(self, indices: Any, weights: Any, grads: Any, states: Any) -> None:
        self._update_count(indices)
        lrs, wds = self._get_lrs(indices), self._get_wds(indices)
        lists = zip(indices, weights, grads, states, lrs, wds, strict=True)
        for index, weight, grad, (mean, var), lr, wd in lists:
            t = self._index_update_count[index]
            g = self.preprocess(grad)
            mean[:] = self.beta1 * mean + (1 - self.beta1) * g
            var[:] = self.beta2 * var + (1 - self.beta2) * g * g
            direction = (1 - self.gamma) * mean / (1 - self.beta1**t) + self.gamma * g
            root = mx.nd.sqrt(var / (1 - self.beta2**t)) + self.epsilon
            weight[:] = (1 - lr * wd) * weight - lr * direction / root


class Setup(NamedTuple):
    """How a run trains: the rest is the method's own.

    `decay` is for methods by SGD, in place of their own.
    """

    net: gluon.HybridBlock
    train: common.Split
    seed: int
    loader_of: Callable[..., Any] = common.loader_of
    decay: float | None = None


class Method:
    """One gradient of the batch a step, by an optimizer of MXNet or of the package."""

    name: ClassVar[str]
    title: ClassVar[str]
    batch_size: ClassVar[int] = common.BATCH_SIZE
    # Gradients of the batch that a step computes, for the table.
    cost: ClassVar[str] = "1"
    optimizer: ClassVar[Any] = "sgd"
    settings: ClassVar[dict[str, Any]] = {}
    decay: ClassVar[float] = 5e-4

    def __init__(self, setup: Setup) -> None:
        self.net, self.setup = setup.net, setup
        self.evaluations = 0
        self.number = 0
        self._backward = common.backward_of(setup.net)
        kind = self.optimizer
        if isinstance(kind, type):  # an instance of the class
            kind = kind(**self.settings)
        settings = {} if kind is not self.optimizer else dict(self.settings)
        self.trainer = gs.SVRGTrainer(setup.net.collect_params(), kind, settings)
        self.trainer.optimizer.wd = self.decay if setup.decay is None else setup.decay

    def done(self, budget: float) -> float:
        """Return how much of the run is done, if it is to cost that many gradients."""
        return self.evaluations / budget

    def batches(self) -> Iterator[Batch]:
        """Yield batches without an end, in a new order each epoch."""
        return self._batches(self.batch_size, self.setup.seed)

    def step(self, batch: Batch, learning_rate: float) -> None:
        """Take one step."""
        self.trainer.set_learning_rate(learning_rate)
        self._step(batch)
        self.number += 1

    def _step(self, batch: Batch) -> None:
        losses = self._backward_as(batch)
        self.trainer.step(len(losses))
        self.evaluations += len(losses)

    def _backward_as(self, batch: Batch) -> NDArray:
        """Let the parameters have the batch's gradient, with this step's dropout masks."""
        self._seed(self.number)
        return self._backward(batch)

    def _seed(self, number: int) -> None:
        mx.random.seed(1_000_003 * self.setup.seed + number)

    def _batches(self, batch_size: int, seed: int) -> Iterator[Batch]:
        loader = self.setup.loader_of(self.setup.train, batch_size, seed=seed)
        while True:
            for batch in loader:
                if len(batch[0]) == batch_size:
                    yield batch


class SGD(Method):
    name, title = "sgd", "SGD without momentum"


class NAG(Method):
    name, title = "nag", "NAG 0.9"
    optimizer, settings = "nag", {"momentum": 0.9}


class AdamWUsual(Method):
    name, title = "adamw-999", "AdamW (0.9, 0.999)"
    optimizer, decay = "adamw", 0.01


class AdamW(AdamWUsual):
    name, title = "adamw", "AdamW (0.95, 0.99)"
    settings = BETAS


class QH(AdamW):
    name, title = "qhadamw", "QHAdamW (0.95, 0.99), gamma 0.025"
    optimizer = QHAdamW


class MARS(AdamW):
    name, title = "mars", "`gs.MARS` (0.95, 0.99), gamma 0.025"
    optimizer = "mars"


class Recursive(Method):
    """Steps along d = g - coefficient (p - d'), p at the weights before, d' the last d."""

    cost = "2"

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.snapshot: Snapshot | None = None

    def _begin(self, batches: Sequence[Batch], coefficient: float) -> int:
        """Let d be the mean gradient of these batches here; return how many samples they have."""
        if self.snapshot is None:
            self.net(batches[0][0][:1])  # the shapes
            self.snapshot = Snapshot(self.net)
        self.snapshot.take()
        self._seed(-1 - self.number)
        mean = self.snapshot.full_gradient(self._backward, batches)
        self.trainer.set_control_variate(mean, coefficient)
        return sum(len(batch[0]) for batch in batches)

    def _recursive_step(self, batch: Batch, coefficient: float) -> None:
        losses = self._backward_as(batch)
        self._seed(self.number)
        self.trainer.correct(self.snapshot.gradient(self._backward, batch))
        estimate = self.trainer.corrected_gradient(len(losses))
        self.snapshot.take()
        self.trainer.step(len(losses))
        self.trainer.set_control_variate(estimate, coefficient)
        self.evaluations += 2 * len(losses)


class Storm(Recursive):
    """STORM with a constant a (Cutkosky & Orabona 2019)."""

    name, title = "storm", "STORM, a = 0.5"
    batch_size = common.BATCH_SIZE // 2
    a: ClassVar[float] = 0.5

    def _step(self, batch: Batch) -> None:
        if not self.number:  # d is the first batch's gradient: its price is that of the step's p
            self._begin([batch], 1 - self.a)
        self._recursive_step(batch, 1 - self.a)


class StormAdamW(Storm):
    name, title = "storm-adamw", "STORM, a = 0.3, then AdamW (0.95, 0.99)"
    optimizer, settings, decay, a = "adamw", BETAS, 0.01, 0.3


class StormTenth(Storm):
    name, title, a = "storm-10", "STORM, a = 0.1", 0.1


class StormHundredth(Storm):
    name, title, a = "storm-100", "STORM, a = 0.01", 0.01


class Sarah(Recursive):
    """SARAH (Nguyen et al. 2017): a full gradient, then an epoch of steps."""

    name, title, cost = "sarah", "SARAH, a full gradient an epoch", "2 + n/m"
    batch_size = common.BATCH_SIZE

    def period(self) -> int:
        """Return the number of steps from one full gradient to the next."""
        return len(self.setup.train[1]) // self.batch_size

    def _step(self, batch: Batch) -> None:
        begins = self.number % self.period() == 0
        if begins:
            everything = list(self.setup.loader_of(self.setup.train, self.batch_size))
            self.evaluations += self._begin(everything, 1.0)
        self._recursive_step(batch, 1.0)
        if begins:  # the first step is along the full gradient: its two gradients cancel
            self.evaluations -= 2 * len(batch[0])


class HalfSarah(Sarah):
    """SARAH of which a full gradient and its steps cost two passes."""

    title = "SARAH, a full gradient every two passes"
    batch_size = common.BATCH_SIZE // 2

    def period(self) -> int:
        return 1 + len(self.setup.train[1]) // (2 * self.batch_size)

    def done(self, budget: float) -> float:
        """Return the share of the steps: full gradients come in lumps."""
        return self.number * 2 * len(self.setup.train[1]) / self.period() / budget


class Page(Recursive):
    """PAGE (Li et al. 2020), with its b' = sqrt(b) and p = b' / (b + b')."""

    name, title, cost = "page", "PAGE, batches of 1024 and 32", "about 3"
    batch_size = 32

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        large = self.batch_size**2
        self._large = self._batches(large, setup.seed + 1)
        self._probability = self.batch_size / (large + self.batch_size)
        self._random = np.random.default_rng(setup.seed)

    def _step(self, batch: Batch) -> None:
        begins = not self.number or self._random.random() < self._probability
        if begins:
            self.evaluations += self._begin([next(self._large)], 1.0)
        self._recursive_step(batch, 1.0)
        if begins:  # the batch's two gradients cancel: the paper's method computes neither
            self.evaluations -= 2 * len(batch[0])


class ExactMARS(Recursive):
    """MARS with the last weights' gradient on the same batch (Yuan et al. 2024)."""

    name, title = "exact-mars", "exact MARS (0.95, 0.99), gamma 0.025"
    batch_size = common.BATCH_SIZE // 2
    optimizer, settings, decay = "mars", {**BETAS, "gamma": 0}, 0.01

    def _step(self, batch: Batch) -> None:
        change = GAMMA * BETAS["beta1"] / (1 - BETAS["beta1"])
        if not self.number:
            self._begin([batch], 0.0)
            params = [p for p in self.net.collect_params().values() if p.grad_req != "null"]
            zero = FullGradient({p.name: mx.nd.zeros_like(p.data()) for p in params}, 1)
            self.trainer.set_control_variate(zero, change / (1 + change))
        losses = self._backward_as(batch)
        self._seed(self.number)
        # c = g + k (g - p) = (1 + k) (g - k / (1 + k) p); in the first step p = g, so c = g.
        self.trainer.correct(self.snapshot.gradient(self._backward, batch))
        self.snapshot.take()
        self.trainer.step(len(losses) / (1 + change))
        self.evaluations += 2 * len(losses)


METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        NAG, SGD, AdamWUsual, AdamW, QH, MARS, ExactMARS, Storm, StormAdamW, StormTenth,
        StormHundredth, HalfSarah, Page,
    )
}  # fmt: skip


def schedule(done: float) -> float:
    """Return the share of the learning rate after this share of the gradients.

    A linear warm-up over the first tenth, then a cosine to 0.
    """
    if done < 0.1:
        return 0.1 + 9 * done
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (done - 0.1) / 0.9)))
