"""Object detection: a small SSD learns to find discs and squares.

    python recipes/object_detection.py
    python recipes/object_detection.py --epochs 30 --images 4000
    python recipes/object_detection.py --optimizer adam --lr 0.002 --batch-size 16
    python recipes/object_detection.py --svrg

A single-shot detector (SSD, Liu et al. 2016) on images that are generated: up to three shapes on a
noisy ground. The shape of the problem is the usual one: anchors on two feature maps, targets per
anchor, GluonCV's loss, which picks three background anchors for each box (hard negative mining),
and non-maximum suppression at the end. All images have the same anchors, so the targets are
computed once, and a batch is ``(images, (class of each anchor, offsets of each anchor))``.

The Estimator runs it with a batch processor of its own: GluonCV's loss takes four arrays and
returns three lists, which is not what a gluon.loss.Loss does.

Writes into ``runs/object_detection``: ``detections.png`` (boxes that were found in test images),
``curves.png``, ``history.csv`` and ``result.json``.
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
from gluoncv.loss import SSDMultiBoxLoss
from gluoncv.utils.metrics.voc_detection import VOCMApMetric
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from mxnet import autograd, gluon
from mxnet.gluon import nn
from one_voice import is_first_worker
from option_types import POSITIVE, SEED, integer, show_defaults

SIZE = 64  # of an image, in pixels
CLASSES = ["disc", "square"]
BOXES = 3  # most shapes of an image
# Width of the anchors in parts of the image, for the maps of 16 x 16 and of 8 x 8 cells.
ANCHOR_SIZES = [(0.15, 0.22), (0.32, 0.45)]
ANCHOR_RATIOS = (1, 1.5, 0.67)


class Images(NamedTuple):
    """Images (N, 3, SIZE, SIZE) and boxes (N, BOXES, 5): class, left, top, right, bottom in [0, 1].

    The class of a box that is not there is -1.
    """

    pixels: np.ndarray
    boxes: np.ndarray


def generate(number: int, seed: int) -> Images:
    """Draw images with one to BOXES shapes that do not overlap."""
    rng = np.random.default_rng(seed)
    pixels = rng.normal(0, 0.25, (number, 3, SIZE, SIZE)).astype("float32")
    boxes = np.full((number, BOXES, 5), -1, "float32")
    rows, columns = np.mgrid[:SIZE, :SIZE]
    for image, found in zip(pixels, boxes, strict=True):
        taken = np.zeros((SIZE, SIZE), bool)
        drawn = 0
        for _ in range(rng.integers(1, BOXES + 1)):
            side = rng.integers(10, 30)
            top, left = rng.integers(0, SIZE - side, 2)
            window = np.s_[top : top + side, left : left + side]
            if taken[window].any():
                continue
            taken[window] = True
            kind = rng.integers(len(CLASSES))
            inside = (rows >= top) & (rows < top + side) & (columns >= left)
            inside &= columns < left + side
            if CLASSES[kind] == "disc":
                middle = (side - 1) / 2
                distance = (rows - top - middle) ** 2 + (columns - left - middle) ** 2
                inside &= distance <= (side / 2) ** 2
            image[:, inside] += rng.uniform(0.5, 1.5, (3, 1)) * rng.choice([-1, 1])
            found[drawn] = kind, *(np.array([left, top, left + side, top + side]) / SIZE)
            drawn += 1  # MultiBoxTarget reads up to the first box that is not there
    return Images(pixels, boxes)


class SSD(gluon.HybridBlock):
    """Scores (N, anchors, classes + 1) and offsets (N, 4 anchors) from two feature maps.

    Class 0 is the background.
    """

    def __init__(self) -> None:
        super().__init__()
        per_cell = len(ANCHOR_SIZES[0]) + len(ANCHOR_RATIOS) - 1
        with self.name_scope():
            self.fine, self.coarse = nn.HybridSequential(), nn.HybridSequential()
            self.fine.add(nn.Conv2D(16, 3, strides=2, padding=1, activation="relu"))
            self.fine.add(*_halved(32))
            self.coarse.add(*_halved(64))
            self.heads = nn.HybridSequential()
            for _ in ANCHOR_SIZES:
                self.heads.add(nn.Conv2D(per_cell * (len(CLASSES) + 1), 3, padding=1))
                self.heads.add(nn.Conv2D(per_cell * 4, 3, padding=1))

    def hybrid_forward(self, F: Any, x: Any) -> tuple[Any, Any]:  # noqa: N803  # Gluon's name
        """Return scores and offsets, anchor by anchor as MultiBoxPrior numbers them."""
        fine = self.fine(x)
        outputs: tuple[list[Any], list[Any]] = [], []
        for i, features in enumerate([fine, self.coarse(fine)]):
            for column, head in zip(outputs, self.heads[2 * i : 2 * i + 2], strict=True):
                column.append(F.flatten(F.transpose(head(features), (0, 2, 3, 1))))
        scores, offsets = (F.concat(*column, dim=1) for column in outputs)
        return F.reshape(scores, (0, -1, len(CLASSES) + 1)), offsets


def _halved(channels: int) -> list[gluon.HybridBlock]:
    layers: list[gluon.HybridBlock] = []
    for _ in range(2):
        layers += [
            nn.Conv2D(channels, 3, padding=1, use_bias=False),
            nn.BatchNorm(),
            nn.Activation("relu"),
        ]
    return [*layers, nn.MaxPool2D()]


def anchors_of(sizes: Sequence[tuple[float, ...]]) -> mx.nd.NDArray:
    """Return the anchors (1, anchors, 4) of all maps; an image of SIZE has maps of 1/4 and 1/8."""
    maps = [mx.nd.zeros((1, 1, SIZE // 4 // 2**i, SIZE // 4 // 2**i)) for i in range(len(sizes))]
    priors = [
        mx.nd.contrib.MultiBoxPrior(cells, sizes=size, ratios=ANCHOR_RATIOS)
        for cells, size in zip(maps, sizes, strict=True)
    ]
    return mx.nd.concat(*priors, dim=1)


def targets_of(boxes: np.ndarray, anchors: mx.nd.NDArray) -> tuple[mx.nd.NDArray, mx.nd.NDArray]:
    """Return class (N, anchors) and offsets (N, anchors, 4) that each anchor is to predict."""
    no_scores = mx.nd.zeros((len(boxes), len(CLASSES) + 1, anchors.shape[1]))
    offsets, _, classes = mx.nd.contrib.MultiBoxTarget(anchors, mx.nd.array(boxes), no_scores)
    return classes, offsets.reshape((0, -1, 4))


class Detection(gs.BatchProcessor):
    """Runs GluonCV's loss on a batch of images and targets.

    That loss divides by the number of boxes of the batch, where a gluon.loss.Loss gives one number
    per sample, of which the trainer's step takes the mean. It is multiplied by the number of
    images here, so that the mean over the images is the loss per box.
    """

    def __init__(self) -> None:
        self._loss = SSDMultiBoxLoss()

    def fit_batch(self, estimator: Any, train_batch: Any, batch_axis: int = 0) -> Any:
        """Run the forward and the backward pass of one batch."""
        with autograd.record():
            parts = self._forward(estimator.net, train_batch)
        autograd.backward(parts[3])
        return parts

    def evaluate_batch(self, estimator: Any, val_batch: Any, batch_axis: int = 0) -> Any:
        """Run the forward pass of one batch."""
        return self._forward(estimator.val_net, val_batch)

    def _forward(self, net: gluon.Block, batch: Any) -> Any:
        images, (classes, offsets) = batch
        scores, moved = net(images)
        losses, _, _ = self._loss(scores, moved, classes, offsets)
        loss = losses[0] * len(images)
        return [images], [(classes, offsets)], [(scores, moved)], [loss]


def detected(net: gluon.Block, pixels: np.ndarray, anchors: mx.nd.NDArray) -> np.ndarray:
    """Return what is found (N, anchors, 6): class, score, box; the class -1 is nothing."""
    found = []
    for begin in range(0, len(pixels), 100):
        scores, offsets = net(mx.nd.array(pixels[begin : begin + 100]))
        probabilities = scores.softmax().transpose((0, 2, 1))
        boxes = mx.nd.contrib.MultiBoxDetection(
            probabilities, offsets, anchors, nms_threshold=0.45, nms_topk=400
        )
        found.append(boxes.asnumpy())
    return np.concatenate(found)


def mean_average_precision(found: np.ndarray, boxes: np.ndarray) -> float:
    """Return the mean over the classes of the average precision at an overlap of one half."""
    metric = VOCMApMetric(iou_thresh=0.5, class_names=CLASSES)
    metric.update(found[..., 2:], found[..., 0], found[..., 1], boxes[..., 1:], boxes[..., 0])
    return float(metric.get()[1][-1])


def draw(images: Images, found: np.ndarray) -> Figure:
    """Draw true boxes (dashed) and those found with a score of at least one half, in ten images."""
    figure = Figure(figsize=(11, 4.8), layout="constrained")
    axes = figure.subplots(2, 5, squeeze=False).ravel()
    for axis, pixels, boxes, rows in zip(axes, *images, found, strict=False):
        axis.imshow(np.clip(pixels.transpose(1, 2, 0) / 4 + 0.5, 0, 1))
        for _, *corners in boxes[boxes[:, 0] >= 0]:
            axis.add_patch(_rectangle(corners, edgecolor="white", linestyle="--"))
        for kind, score, *corners in rows[(rows[:, 0] >= 0) & (rows[:, 1] >= 0.5)]:
            colour = ["C4", "C5"][int(kind)]
            axis.add_patch(_rectangle(corners, edgecolor=colour))
            text = f"{CLASSES[int(kind)]} {score:.0%}"
            # Inside the image, above the box if there is room.
            top = max(corners[1] * SIZE - 1, 7)
            axis.text(corners[0] * SIZE, top, text, color="black", fontsize=8,
                      bbox={"facecolor": colour, "pad": 1, "linewidth": 0})  # fmt: skip
        axis.set_axis_off()
    figure.suptitle("test images: true boxes dashed, found ones with class and score")
    return figure


def _rectangle(corners: Sequence[float], **style: Any) -> Rectangle:
    left, top, right, bottom = (SIZE * float(corner) - 0.5 for corner in corners)
    return Rectangle((left, top), right - left, bottom - top, fill=False, linewidth=1.6, **style)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=integer(2), default=800, help="for training")
    parser.add_argument("--test-images", type=integer(1), default=200)
    parser.add_argument("--epochs", type=integer(1), default=10)
    parser.add_argument("--batch-size", type=integer(1), default=32)
    parser.add_argument("--optimizer", choices=["sgd", "adam"], default="sgd")
    parser.add_argument("--lr", type=POSITIVE, default=0.1)
    parser.add_argument("--svrg", action="store_true", help="a snapshot at each epoch")
    parser.add_argument("--seed", type=SEED, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/object_detection"))
    return show_defaults(parser).parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the recipe; return the result."""
    options = parse(arguments)
    gs.seed_everything(options.seed)
    is_first = is_first_worker()
    train, test = generate(options.images, 1), generate(options.test_images, 2)
    anchors = anchors_of(ANCHOR_SIZES)
    print(f"{len(train.pixels)} images for training, {anchors.shape[1]} anchors in each")
    loaders = [
        ArrayLoader(
            images.pixels, targets_of(images.boxes, anchors), batch_size=options.batch_size,
            shuffle=images is train, seed=options.seed,
        )
        for images in (train, test)
    ]  # fmt: skip

    net = SSD()
    net.initialize(mx.init.Xavier())
    net.hybridize(static_alloc=True)
    settings: dict[str, Any] = {"learning_rate": options.lr, "wd": 5e-4}
    if options.optimizer == "sgd":
        settings["momentum"] = 0.9
    trainer = gs.SVRGTrainer(net.collect_params(), options.optimizer, settings)
    estimator = gs.Estimator(
        net,
        gluon.loss.L1Loss(),  # not called: the batch processor has the loss
        train_metrics=mx.metric.Loss("loss"),
        trainer=trainer,
        batch_processor=Detection(),
    )
    schedule = gs.schedules.warm_up(gs.schedules.cosine(options.lr), 0.1, options.lr / 10)
    options.out.mkdir(parents=True, exist_ok=True)
    handlers: list[gs.events.EventHandler] = [
        gs.ScheduleHandler("learning_rate", schedule),
        gs.NaNGuardHandler(),
        gs.HistoryFileHandler(options.out / "history.csv", overwrite=True),
        gs.SignalHandler(),
    ]
    if options.svrg:
        handlers.append(gs.SVRGHandler())
    fit = estimator.fit(loaders[0], loaders[1], epochs=options.epochs, event_handlers=handlers)

    found = detected(net, test.pixels, anchors)
    result = {
        "mean average precision": mean_average_precision(found, test.boxes),
        "epochs": fit.epochs_run,
        "training loss": fit.history[-1]["training loss"] if fit.history else None,
    }
    if is_first:
        print(f"mean average precision of {len(test.pixels)} test images: "
              f"{result['mean average precision']:.1%}")  # fmt: skip
        run_report.write_json(options.out / "result.json", result)
        run_report.write_figure(options.out / "detections.png", draw(test, found))
        if fit.history:
            title = "SSD on generated images"
            run_report.write_figure(options.out / "curves.png", fit.history.plot(title=title))
        print(f"See {options.out}: detections.png, curves.png, history.csv, result.json")
    if fit.stop_reason is gs.StopReason.SIGNAL:
        interruption.leave()
    return result


if __name__ == "__main__":
    interruption.run(main)
