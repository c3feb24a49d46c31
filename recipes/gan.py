"""A GAN: two networks, two trainers, a loop by hand.

    python recipes/gan.py
    python recipes/gan.py --steps 10000
    python recipes/gan.py --optimizer sgd --lr 0.05
    python recipes/gan.py --clusters 16

The generator learns to place points as the data do, in clusters on a circle; the discriminator
learns to tell its points from theirs. All there is to see fits into one picture, and how good the
generator is can be counted: which clusters it reaches, and how many of its points lie in one.

This loop is written by hand, since the Estimator has one network, one loss and one trainer: a
second trainer that a batch processor brings along would take its steps, but its learning rate
would have no schedule, and its states would not be in the checkpoints. What stands between the two
trainers is plain Gluon, and this package's trainers and optimizers are used as in any other loop.
There is no SVRG here: what each network minimizes changes with every step of the other, so that a
full gradient is out of date at once. Variance reduction for games needs a method of its own
(Chavdarova et al., "Reducing noise in GAN training with variance reduced extragradient", 2019).

Writes into ``runs/gan``: ``points.png`` (generated points during the training), ``losses.png``,
``history.csv`` and ``result.json``.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# The layers are too small to be shared among threads. MXNet reads this once, when it is loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import interruption
import gluon_svrg as gs
import mxnet as mx
import numpy as np
import run_report
from matplotlib.figure import Figure
from mxnet import autograd, gluon
from mxnet.gluon import nn
from option_types import POSITIVE, SEED, integer, show_defaults

SPREAD = 0.05  # standard deviation of a cluster; the circle has the radius 1
PICTURES = 5


def centres_of(clusters: int) -> np.ndarray:
    """Return the centres (clusters, 2) of the data."""
    angles = 2 * np.pi * np.arange(clusters) / clusters
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def dense_net(outputs: int, activation: str) -> gluon.HybridBlock:
    """Return a network of two hidden layers."""
    net = nn.HybridSequential()
    for _ in range(2):
        net.add(nn.Dense(128, activation=activation))
    net.add(nn.Dense(outputs))
    net.initialize(mx.init.Xavier())
    net.hybridize(static_alloc=True)
    return net


class GAN:
    """Both networks, each with its trainer."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.noise = options.noise
        self.generator = dense_net(2, "relu")
        self.discriminator = dense_net(1, "relu")
        self.loss = gluon.loss.SigmoidBCELoss()
        settings: dict[str, Any] = {"learning_rate": options.lr}
        if options.optimizer == "adam":
            settings["beta1"] = 0.5  # less momentum than usual, as DCGAN's authors found
        self.trainers = [
            gs.SVRGTrainer(net.collect_params(), options.optimizer, dict(settings))
            for net in (self.discriminator, self.generator)
        ]

    def step(self, real: mx.nd.NDArray) -> tuple[mx.nd.NDArray, mx.nd.NDArray]:
        """Take a step of each network; return their losses (N,) before it."""
        number = len(real)
        ones, zeros = mx.nd.ones((number,)), mx.nd.zeros((number,))
        noise = mx.nd.random.normal(shape=(number, self.noise))
        for_discriminator, for_generator = self.trainers
        # No gradient goes into the generator here: its pass is outside of the recording.
        fake = self.generator(noise)
        with autograd.record():
            of_real = self.loss(self.discriminator(real), ones)
            of_fake = self.loss(self.discriminator(fake), zeros)
            discriminator_loss = (of_real + of_fake) / 2
        discriminator_loss.backward()
        for_discriminator.step(number)
        with autograd.record():
            # -log D(G(z)) rather than log(1 - D(G(z))), whose gradient vanishes at the beginning.
            generator_loss = self.loss(self.discriminator(self.generator(noise)), ones)
        # The discriminator's gradients are overwritten by its next backward pass.
        generator_loss.backward()
        for_generator.step(number)
        return discriminator_loss, generator_loss

    def points(self, noise: mx.nd.NDArray) -> np.ndarray:
        """Return generated points (N, 2)."""
        made: np.ndarray = self.generator(noise).asnumpy()
        return made


def quality(points: np.ndarray, centres: np.ndarray) -> tuple[int, float]:
    """Return how many clusters have points, and the share of the points that lie in one.

    A point lies in a cluster if it is within four standard deviations. A cluster counts as covered
    if it has at least a quarter of its share of the points.
    """
    distances = np.linalg.norm(points[:, None] - centres, axis=2)
    is_inside = distances.min(axis=1) < 4 * SPREAD
    counts = np.bincount(distances.argmin(axis=1)[is_inside], minlength=len(centres))
    return int((counts >= len(points) / len(centres) / 4).sum()), float(is_inside.mean())


def draw_points(snapshots: dict[int, np.ndarray], real: np.ndarray) -> Figure:
    """Draw generated points over those of the data, from the beginning to the end."""
    figure = Figure(figsize=(2.6 * len(snapshots), 3), layout="constrained")
    axes = figure.subplots(1, len(snapshots), sharex=True, sharey=True, squeeze=False).ravel()
    for axis, (step, points) in zip(axes, snapshots.items(), strict=True):
        axis.scatter(*real.T, s=4, color="0.75", label="data")
        axis.scatter(*points.T, s=4, color="C1", alpha=0.6, label="generated")
        axis.set(title=f"step {step:,}", xlim=(-1.6, 1.6), ylim=(-1.6, 1.6), aspect="equal")
    axes[0].legend(loc="upper left", fontsize=8)
    figure.suptitle("Generated points over those of the data")
    return figure


def draw_losses(rows: Sequence[dict[str, Any]]) -> Figure:
    """Draw the losses of both networks, and the share of points in clusters."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    losses, shares = figure.subplots(1, 2)
    steps = [row["step"] for row in rows]
    for name in ("discriminator loss", "generator loss"):
        losses.plot(steps, [row[name] for row in rows], label=name)
    losses.axhline(np.log(2), color="black", linestyle=":", label="discriminator that guesses")
    losses.set(xlabel="step", ylabel="loss")
    losses.legend()
    shares.plot(steps, [100 * row["points in clusters"] for row in rows], color="C1")
    shares.set(xlabel="step", ylabel="generated points in clusters, %", ylim=(0, 100))
    for axis in (losses, shares):
        axis.grid(alpha=0.3)
    figure.suptitle("Losses of both networks, and what is generated")
    return figure


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clusters", type=integer(1), default=8)
    parser.add_argument("--steps", type=integer(1), default=3000)
    parser.add_argument("--batch-size", type=integer(1), default=128)
    parser.add_argument("--noise", type=integer(1), default=8, help="dimensions of the noise")
    parser.add_argument("--optimizer", choices=["adam", "sgd"], default="adam")
    parser.add_argument("--lr", type=POSITIVE, default=0.001, help="of both networks")
    parser.add_argument("--report-every", type=integer(1), default=200, help="steps")
    parser.add_argument("--seed", type=SEED, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/gan"))
    return show_defaults(parser).parse_args(arguments)


def train(
    gan: GAN, centres: np.ndarray, options: argparse.Namespace, rows: list[dict[str, Any]],
    snapshots: dict[int, np.ndarray],
) -> None:  # fmt: skip
    """Train; what is found on the way goes into `rows` and `snapshots`."""
    rng = np.random.default_rng(options.seed)
    fixed_noise = mx.nd.random.normal(shape=(1000, options.noise))
    pictures = {round(options.steps * i / (PICTURES - 1)) for i in range(PICTURES)}
    snapshots[0] = gan.points(fixed_noise)
    for step in range(1, options.steps + 1):
        chosen = centres[rng.integers(len(centres), size=options.batch_size)]
        real = mx.nd.array(chosen + rng.normal(0, SPREAD, chosen.shape))
        losses = gan.step(real)
        if step in pictures:
            snapshots[step] = gan.points(fixed_noise)
        if step % options.report_every == 0 or step == options.steps:
            reached, inside = quality(gan.points(fixed_noise), centres)
            row: dict[str, Any] = {"step": step}
            for name, loss in zip(("discriminator", "generator"), losses, strict=True):
                row[f"{name} loss"] = float(loss.mean().asscalar())
            row |= {"clusters": reached, "points in clusters": inside}
            rows.append(row)
            if not np.isfinite([*row.values()]).all():
                raise SystemExit(f"a loss is not finite at step {step}: give a smaller --lr")
            if len(rows) % 5 == 0 or step == options.steps:
                print(f"step {step}: losses {row['discriminator loss']:.3f} and "
                      f"{row['generator loss']:.3f}, {reached} of {len(centres)} clusters, "
                      f"{inside:.0%} of the points in one")  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the recipe; return the result."""
    options = parse(arguments)
    gs.seed_everything(options.seed)
    centres = centres_of(options.clusters)
    gan = GAN(options)
    rows: list[dict[str, Any]] = []
    snapshots: dict[int, np.ndarray] = {}
    is_interrupted = False
    try:
        train(gan, centres, options, rows, snapshots)
    except KeyboardInterrupt:
        is_interrupted = True
    options.out.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = dict(rows[-1]) if rows else {"step": 0}
    run_report.write_json(options.out / "result.json", result)
    real = centres.repeat(100, axis=0)
    real = real + np.random.default_rng(0).normal(0, SPREAD, real.shape)
    if snapshots:
        run_report.write_figure(options.out / "points.png", draw_points(snapshots, real))
    if rows:
        run_report.write_csv(options.out / "history.csv", rows)
        run_report.write_figure(options.out / "losses.png", draw_losses(rows))
    print(f"See {options.out}: points.png, losses.png, history.csv, result.json")
    if is_interrupted:
        interruption.leave()
    return result


if __name__ == "__main__":
    interruption.run(main)
