"""Segmentation: a fully convolutional net with an auxiliary output.

    python recipes/segmentation.py
    python recipes/segmentation.py --aux-weight 0
    python recipes/segmentation.py --epochs 30 --images 2000
    python recipes/segmentation.py --svrg

The class of every pixel (ground, disc or square), on images that are generated. As in FCN, PSPNet
and DeepLab, a second head looks at features of the middle of the net: its loss is added with a
small weight while the net is trained, and its output is not used afterwards.

The Estimator runs it as it is. The net returns ``(scores, auxiliary scores)``, and the loss is a
gluon.loss.Loss of four lines that hands both on to GluonCV's; the pixels labelled -1, those on the
border of a shape, count for nothing.

Writes into ``runs/segmentation``: ``masks.png`` (image, truth and prediction), ``curves.png``,
``history.csv`` and ``result.json``.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

# The layers are too small to be shared among threads. MXNet reads this once, when it is loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import interruption
import gluon_svrg as gs
import mxnet as mx
import numpy as np
import run_report
from gluon_svrg.data import ArrayLoader
from gluoncv.loss import MixSoftmaxCrossEntropyLoss
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from mxnet import gluon
from mxnet.gluon import nn
from one_voice import is_first_worker
from option_types import POSITIVE, SEED, integer, number, show_defaults

SIZE = 48  # of an image, in pixels
CLASSES = ["ground", "disc", "square"]
IGNORED = -1


class Images(NamedTuple):
    """Images (N, 3, SIZE, SIZE) and the class of each pixel (N, SIZE, SIZE)."""

    pixels: np.ndarray
    classes: np.ndarray


def generate(number: int, seed: int) -> Images:
    """Draw images with one to four shapes, a later one in front of the others."""
    rng = np.random.default_rng(seed)
    pixels = rng.normal(0, 0.3, (number, 3, SIZE, SIZE)).astype("float32")
    classes = np.zeros((number, SIZE, SIZE), "float32")
    rows, columns = np.mgrid[:SIZE, :SIZE]
    for image, truth in zip(pixels, classes, strict=True):
        for _ in range(rng.integers(1, 5)):
            kind = rng.integers(1, len(CLASSES))
            half = rng.uniform(5, 12)
            y, x = np.abs(rows - rng.uniform(0, SIZE)), np.abs(columns - rng.uniform(0, SIZE))
            distance = np.hypot(y, x) if CLASSES[kind] == "disc" else np.maximum(y, x)
            inside = distance < half
            colour = rng.uniform(0.5, 1.5, (3, 1)) * rng.choice([-1, 1], (3, 1))
            image[:, inside] = rng.normal(0, 0.3, (3, inside.sum())) + colour
            truth[inside] = kind
            truth[np.abs(distance - half) < 0.5] = IGNORED
    return Images(pixels, classes)


class FCN(gluon.HybridBlock):
    """Scores (N, classes, height, width) of the last features, and those of the middle ones."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.early, self.late = nn.HybridSequential(), nn.HybridSequential()
            self.early.add(*_layers(16, strides=2), *_layers(32))
            self.late.add(*_layers(48, strides=2))
            for dilation in (1, 2, 4):  # a pixel sees all of a shape, as in DeepLab
                self.late.add(*_layers(48, dilation=dilation))
            self.head, self.auxiliary = nn.Conv2D(len(CLASSES), 1), nn.Conv2D(len(CLASSES), 1)

    def hybrid_forward(self, F: Any, x: Any) -> tuple[Any, Any]:  # noqa: N803  # Gluon's name
        """Return both outputs, at the size of the image."""
        early = self.early(x)
        late = F.contrib.BilinearResize2D(self.late(early), scale_height=2.0, scale_width=2.0)
        # The fine features say where a shape ends, the coarse ones what it is.
        scores = self.head(F.concat(early, late, dim=1)), self.auxiliary(early)
        return tuple(
            F.contrib.BilinearResize2D(score, scale_height=2.0, scale_width=2.0) for score in scores
        )


def _layers(channels: int, strides: int = 1, dilation: int = 1) -> list[gluon.HybridBlock]:
    convolution = nn.Conv2D(channels, 3, strides, dilation, dilation, use_bias=False)
    return [convolution, nn.BatchNorm(), nn.Activation("relu")]


class BothOutputs(gluon.loss.Loss):
    """The loss of the scores plus `weight` times that of the auxiliary scores."""

    def __init__(self, weight: float) -> None:
        super().__init__(None, 0)
        self.mixed = MixSoftmaxCrossEntropyLoss(aux_weight=weight, ignore_label=IGNORED)

    def hybrid_forward(self, F: Any, outputs: Any, label: Any) -> Any:  # noqa: N803
        """Return one loss per image."""
        return self.mixed(*outputs, label)


class PixelAccuracy(mx.metric.EvalMetric):
    """The share of the pixels, without the ignored ones, whose class is found."""

    def __init__(self) -> None:
        super().__init__("pixel accuracy", output_names=["output0"])

    def update(self, labels: Sequence[mx.nd.NDArray], preds: Sequence[mx.nd.NDArray]) -> None:
        """Count the pixels of a batch."""
        for label, scores in zip(labels, preds, strict=True):
            truth, found = label.asnumpy(), scores.argmax(axis=1).asnumpy()
            self.sum_metric += int((truth == found).sum())
            self.num_inst += int((truth != IGNORED).sum())


def intersection_over_union(found: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    """Return, for each class, the pixels that both have over those that either has."""
    counted = truth != IGNORED
    shares = {}
    for kind, name in enumerate(CLASSES):
        is_found, is_true = (found == kind) & counted, truth == kind
        shares[name] = float((is_found & is_true).sum() / max(1, (is_found | is_true).sum()))
    return shares


def draw(images: Images, found: np.ndarray) -> Figure:
    """Draw image, truth and prediction of eight images, one below the other."""
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    axes = figure.subplots(3, 8, squeeze=False)
    colours = ListedColormap(["white", "0.85", "C4", "C0"])  # ignored, ground, ...
    for column, pixels, truth, prediction in zip(axes.T, *images, found, strict=False):
        column[0].imshow(np.clip(pixels.transpose(1, 2, 0) / 4 + 0.5, 0, 1))
        for axis, classes in zip(column[1:], [truth, prediction], strict=True):
            axis.imshow(classes, cmap=colours, vmin=-1, vmax=2, interpolation="nearest")
    for axis in axes.ravel():
        axis.set(xticks=[], yticks=[])
    for axis, name in zip(axes[:, 0], ["image", "truth", "prediction"], strict=True):
        axis.set_ylabel(name)
    figure.suptitle("test images: discs orange, squares blue, pixels that do not count white")
    return figure


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=integer(2), default=800, help="for training")
    parser.add_argument("--test-images", type=integer(1), default=200)
    parser.add_argument("--epochs", type=integer(1), default=12)
    parser.add_argument("--batch-size", type=integer(1), default=16)
    parser.add_argument("--lr", type=POSITIVE, default=0.005)
    parser.add_argument(
        "--aux-weight", type=number(0), default=0.5, help="of the loss of the auxiliary output"
    )
    parser.add_argument("--svrg", action="store_true", help="a snapshot at each epoch")
    parser.add_argument("--seed", type=SEED, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/segmentation"))
    return show_defaults(parser).parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the recipe; return the result."""
    options = parse(arguments)
    gs.seed_everything(options.seed)
    is_first = is_first_worker()
    train, test = generate(options.images, 1), generate(options.test_images, 2)
    loaders = [
        ArrayLoader(*train, batch_size=options.batch_size, shuffle=True, seed=options.seed),
        ArrayLoader(*test, batch_size=50),
    ]
    net = FCN()
    net.initialize(mx.init.Xavier())
    net.hybridize(static_alloc=True)
    trainer = gs.SVRGTrainer(net.collect_params(), "adam", {"learning_rate": options.lr})
    estimator = gs.Estimator(
        net, BothOutputs(options.aux_weight), train_metrics=PixelAccuracy(), trainer=trainer
    )
    options.out.mkdir(parents=True, exist_ok=True)
    handlers: list[gs.events.EventHandler] = [
        # The schedule of FCN, PSPNet and DeepLab: the learning rate falls to 0 by a power of 0.9.
        gs.ScheduleHandler("learning_rate", gs.schedules.poly(options.lr, power=0.9)),
        gs.NaNGuardHandler(),
        gs.HistoryFileHandler(options.out / "history.csv", overwrite=True),
        gs.SignalHandler(),
    ]
    if options.svrg:
        handlers.append(gs.SVRGHandler())
    fit = estimator.fit(loaders[0], loaders[1], epochs=options.epochs, event_handlers=handlers)

    scores, _ = estimator.predict(test.pixels)
    found = scores.argmax(axis=1).asnumpy()
    shares = intersection_over_union(found, test.classes)
    result = {"mean intersection over union": float(np.mean(list(shares.values())))}
    if is_first:
        for name, share in shares.items():
            print(f"intersection over union, {name}: {share:.1%}")
        result |= {f"intersection over union, {name}": share for name, share in shares.items()}
        run_report.write_json(options.out / "result.json", result)
        run_report.write_figure(options.out / "masks.png", draw(test, found))
        if fit.history:
            title = "FCN with an auxiliary output, generated images"
            run_report.write_figure(options.out / "curves.png", fit.history.plot(title=title))
        print(f"See {options.out}: masks.png, curves.png, history.csv, result.json")
    if fit.stop_reason is gs.StopReason.SIGNAL:
        interruption.leave()
    return result


if __name__ == "__main__":
    interruption.run(main)
