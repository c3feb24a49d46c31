"""A CIFAR ResNet of gluoncv on images, with or without SVRG, with any optimizer.

    python recipes/cifar_resnet.py
    python recipes/cifar_resnet.py --data fashion-mnist --epochs 3 --lr 0.1 --wd 1e-4
    python recipes/cifar_resnet.py --svrg --coefficient 0.75 --epochs 5
    python recipes/cifar_resnet.py --data cifar10 --data-dir ~/cifar10 --download --epochs 200
    python recipes/cifar_resnet.py --epochs 50 --resume  # killed, started again, the same weights

On deep networks plain SVRG rarely pays (Defazio & Bottou 2019). ``--svrg`` costs two gradients a
sample instead of one, or three where the gradients of all batches would not fit into a gibibyte.

Writes ``curves.png``, ``history.csv`` and the exported network into ``runs/cifar_resnet``, or where
``--out`` says.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import gluon_svrg as gs
import mxnet as mx
import numpy as np
from gluon_svrg.data import ArrayLoader, load_fashion_mnist
from gluon_svrg.data.datasets import FASHION_MNIST_DIRECTORY
from gluoncv.model_zoo import get_model
from mxnet import gluon

Split = tuple[np.ndarray, np.ndarray]


def load(options: argparse.Namespace) -> tuple[Split, Split]:
    """Return (images, labels) for training and for testing; images are uint8, N x C x 32 x 32."""
    if options.data == "digits":
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        order = np.random.default_rng(0).permutation(len(images))
        pixels = (images[order].reshape(-1, 1, 8, 8) * 15.9375).astype("uint8")
        pixels = pixels.repeat(4, axis=2).repeat(4, axis=3)
        labels = labels[order]
        return (pixels[297:], labels[297:]), (pixels[:297], labels[:297])
    if options.data == "fashion-mnist":
        splits = load_fashion_mnist(options.data_dir or FASHION_MNIST_DIRECTORY)
        pad = ((0, 0), (2, 2), (2, 2))
        train, test = ((np.pad(x, pad)[:, None], y) for x, y in splits)
        return train, test
    if options.data == "cifar10":
        return load_cifar10(options)
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, options.samples + 100)
    images = rng.integers(0, 256, (len(labels), 3, 32, 32))
    images[np.arange(len(labels)), :, labels] = 255  # a bright row tells the class
    images = images.astype("uint8")
    return (images[100:], labels[100:]), (images[:100], labels[:100])


def load_cifar10(options: argparse.Namespace) -> tuple[Split, Split]:
    """Read CIFAR-10's binary version from a folder; MXNet downloads it there if asked to."""
    directory = Path(options.data_dir or "~/.mxnet/datasets/cifar10").expanduser()
    files = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    if options.download:
        gluon.data.vision.CIFAR10(root=str(directory))
    missing = [name for name in files if not (directory / name).is_file()]
    if missing:
        raise FileNotFoundError(
            f"CIFAR-10 is not in {str(directory)!r} ({missing[0]} is missing): name the folder "
            "that has its binary version, or let MXNet download it there with --download"
        )
    # A record is a label and the 32 x 32 pixels of red, green and blue.
    records = [np.fromfile(directory / name, np.uint8).reshape(-1, 3073) for name in files]
    train, test = (
        (part[:, 1:].reshape(-1, 3, 32, 32), part[:, 0])
        for part in (np.concatenate(records[:5]), records[5])
    )
    return train, test


def loader(
    split: Split, batch_size: int, mean: float, deviation: float, shuffle: bool
) -> ArrayLoader:
    """Return a loader of normalised float32 batches; it keeps the images as bytes."""

    def normalised(images: mx.nd.NDArray, labels: mx.nd.NDArray) -> tuple[mx.nd.NDArray, ...]:
        return (images.astype("float32") - mean) / deviation, labels

    images, labels = split
    return ArrayLoader(
        images,
        labels.astype("float32"),
        batch_size=batch_size,
        shuffle=shuffle,
        transform=normalised,
    )


def make_trainer(net: gluon.Block, options: argparse.Namespace) -> gs.SVRGTrainer:
    """Return the trainer, with the optimizer by its name."""
    parameters = {"learning_rate": options.lr, "wd": options.wd}
    if options.optimizer in ("sgd", "nag", "lars", "signum"):
        parameters["momentum"] = options.momentum
    return gs.SVRGTrainer(net.collect_params(), options.optimizer, parameters)


def make_handlers(options: argparse.Namespace) -> list[gs.events.EventHandler]:
    """Return the schedule (warm-up over a tenth, then a cosine), the log, and what is asked for."""
    cosine = gs.schedules.cosine(options.lr)
    warmed_up = gs.schedules.warm_up(cosine, 0.1, options.lr / 10)
    handlers: list[gs.events.EventHandler] = [
        gs.ScheduleHandler("learning_rate", warmed_up),
        gs.NaNGuardHandler(),
        gs.LogHandler(options.out / "history.csv", overwrite=True),
    ]
    if options.svrg:
        handlers.append(gs.SVRGHandler(options.update_freq, coefficient=options.coefficient))
    if options.resume:
        handlers.append(
            gs.CheckpointHandler(options.out / "checkpoints", monitor="validation accuracy")
        )
    return handlers


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument(
        "--data", choices=["digits", "fashion-mnist", "cifar10", "synthetic"], default="digits"
    )
    parser.add_argument("--data-dir", help="folder of the data set's files")
    parser.add_argument("--download", action="store_true", help="let MXNet download CIFAR-10")
    parser.add_argument("--samples", type=int, default=512, help="of the synthetic data")
    parser.add_argument("--model", default="cifar_resnet20_v1", help="a CIFAR net of gluoncv")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--optimizer", default="nag", help="any optimizer by its name")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--wd", type=float, default=1e-4)
    parser.add_argument("--svrg", action=argparse.BooleanOptionalAction, default=False)
    parser.add_argument("--coefficient", type=float, default=1.0, help="1 is SVRG")
    parser.add_argument("--update-freq", type=int, default=1)
    parser.add_argument(
        "--resume", action="store_true", help="write checkpoints, and go on from the newest"
    )
    parser.add_argument("--devices", type=int, default=1, help="number of (CPU) contexts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/cifar_resnet"))
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> gs.FitResult:
    """Run the recipe; return the result of the training."""
    options = parse(arguments)
    gs.seed_everything(options.seed)
    try:
        train, test = load(options)
    except FileNotFoundError as error:
        raise SystemExit(f"--data {options.data}: {error} (with --data-dir)") from None
    options.out.mkdir(parents=True, exist_ok=True)
    mean, deviation = float(train[0].mean()), float(train[0].std())
    train_batches = loader(train, options.batch_size, mean, deviation, shuffle=True)
    test_batches = loader(test, 256, mean, deviation, shuffle=False)

    contexts = [mx.cpu(i) for i in range(options.devices)]
    net = get_model(options.model, classes=10)
    net.initialize(mx.init.Xavier(magnitude=2), ctx=contexts)
    net.hybridize(static_alloc=True)
    trainer = make_trainer(net, options)
    estimator = gs.Estimator(
        net,
        gluon.loss.SoftmaxCELoss(),
        train_metrics=[mx.metric.Accuracy(), mx.metric.Loss("loss")],
        trainer=trainer,
        context=contexts,
    )
    result = estimator.fit(
        train_batches,
        test_batches,
        epochs=options.epochs,
        event_handlers=make_handlers(options),
        resume="auto" if options.resume else None,
    )

    method = f"{'SVRG, ' if options.svrg else ''}{options.optimizer}"
    title = f"{options.model}, {options.data}, {method}"
    result.history.plot(options.out / "curves.png", title)
    net.export(str(options.out / "model"))
    print(f"See {options.out}: curves.png, history.csv, model-symbol.json, model-0000.params")
    return result


if __name__ == "__main__":
    main()
