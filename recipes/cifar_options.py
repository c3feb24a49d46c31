"""The command line of ``cifar_resnet.py``, and its presets."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cifar_data
from mxnet.context import num_gpus
from option_types import (
    POSITIVE,
    SEED,
    integer,
    named_number,
    number,
    number_or_auto,
    show_defaults,
)


class Preset(NamedTuple):
    """Defaults of options, and what a run with them is expected to reach."""

    expected: str
    options: dict[str, Any]


_OF_SVRG = (
    *("coefficient", "alpha_decay", "update_freq", "lock"),
    *("max_variance_ratio", "recheck_every_n_epochs"),
)
_FASHION_MNIST = {
    "data": "fashion-mnist",
    "model": "cifar_resnet20_v1",
    "epochs": 3,
    "batch_size": 128,
    "momentum": 0.9,
    "wd": 1e-4,
    "schedule": "cosine",
    "warm_up": 200,
    "augment": "flip",
}
PRESETS = {
    # gluoncv's scripts/classification/cifar/train_cifar10.py --num-epochs 200 --num-gpus 2
    # --batch-size 64 (a GPU) --lr 0.1 --wd 0.0001 --lr-decay 0.1 --lr-decay-epoch 100,150
    "gluoncv-cifar10": Preset(
        "92.1 % on CIFAR-10, as gluoncv has published",
        {
            "data": "cifar10",
            "model": "cifar_resnet20_v1",
            "epochs": 200,
            "batch_size": 128,
            "last_batch": "discard",
            "optimizer": "nag",
            "lr": 0.1,
            "momentum": 0.9,
            "wd": 1e-4,
            "schedule": "step",
            "milestones": [100, 150],
            "warm_up": 0,
            "augment": "crop-flip",
            "xavier_magnitude": 3.0,
        },
    ),
    "fashion-mnist-sgd": Preset(
        "about 92 % on Fashion-MNIST, not measured over seeds",
        {**_FASHION_MNIST, "optimizer": "sgd", "lr": 0.1},
    ),
    "fashion-mnist-nag": Preset(
        "92 % on Fashion-MNIST", {**_FASHION_MNIST, "optimizer": "nag", "lr": 0.1}
    ),
    "fashion-mnist-lars": Preset(
        "92 % on Fashion-MNIST",
        {**_FASHION_MNIST, "optimizer": "lars", "lr": 4.0, "decay_on_norm": False},
    ),
    "fashion-mnist-signum": Preset(
        "92 % on Fashion-MNIST",
        {**_FASHION_MNIST, "optimizer": "signum", "lr": 7e-4, "decay_on_norm": False},
    ),
}


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line; ``--preset`` changes defaults, which later options override."""
    parser = _parser()
    name = parser.parse_known_args(arguments)[0].preset
    if name == "list":
        print(_presets())
        raise SystemExit(0)
    if name is not None:
        if name not in PRESETS:
            raise SystemExit(
                f"--preset must be one of {', '.join(PRESETS)}, got {name!r}: --preset list tells "
                "what each is expected to reach"
            )
        parser.set_defaults(**PRESETS[name].options)
    options = parser.parse_args(arguments)
    _check(options, _given(arguments))
    return options


def _given(arguments: Sequence[str] | None) -> set[str]:
    """Return the names of the options on the command line."""
    parser, absent = _parser(), object()
    # What a namespace has already gets no default.
    before = dict.fromkeys(vars(parser.parse_args([])), absent)
    after = vars(parser.parse_args(arguments, argparse.Namespace(**before)))
    return {name for name, value in after.items() if value is not absent}


def _presets() -> str:
    lines = []
    for name, (expected, options) in PRESETS.items():
        values = ", ".join(f"{option} {value}" for option, value in options.items())
        lines.append(f"{name}: {expected}\n    {values}")
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="A CIFAR ResNet of gluoncv on images, with or without SVRG.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"presets:\n{_presets()}",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--preset", metavar="NAME", help="defaults by name, see below; 'list' shows them")
    add("--out", type=Path, default=Path("runs/cifar_resnet"), help="folder of the run")
    add("--seed", type=SEED, default=0)
    add("--resume", action="store_true", help="write checkpoints, and continue from the newest")

    group = parser.add_argument_group("data")
    add = group.add_argument
    add("--data", choices=cifar_data.NAMES, default="digits")
    add("--data-dir", help="folder of the data set's files")
    add("--download", action="store_true", help="let MXNet download CIFAR-10")
    add("--samples", type=integer(1), default=512, help="of the synthetic data")
    add("--batch-size", type=integer(1), default=128)
    add("--last-batch", choices=["keep", "discard"], default="keep")
    add(
        "--augment",
        nargs="?",
        const="crop-flip",
        choices=["none", "flip", "crop-flip"],
        default="none",
        help="crop out of the image padded by 4, flip; alone it means crop-flip",
    )
    add("--cutout", type=integer(0, 32), default=0, metavar="PIXELS",
        help="side of a square that is blanked")  # fmt: skip
    add("--mixup", type=number(0), default=0.0, metavar="ALPHA", help="mix-up's Beta(ALPHA, ALPHA)")
    add("--label-smoothing", type=float, default=0.0, metavar="EPSILON")

    group = parser.add_argument_group("network and devices")
    add = group.add_argument
    add("--model", default="cifar_resnet20_v1", help="a CIFAR net of gluoncv")
    add("--xavier-magnitude", type=POSITIVE, default=2.0)
    add("--devices", type=integer(1), default=1, help="number of contexts")
    add("--gpu", action="store_true", help="they are GPUs, not CPUs")
    add("--dtype", choices=["float32", "bfloat16", "float16"], default="float32", help="by AMP")

    group = parser.add_argument_group("optimizer")
    add = group.add_argument
    add("--epochs", type=integer(1), default=5)
    add("--optimizer", default="nag", help="sgd, nag, lars, signum, adam, any by its name")
    add("--lr", type=POSITIVE, default=0.1)
    add("--momentum", type=number(0), default=0.9)
    add("--wd", type=number(0), default=1e-4)
    add("--decay-on-norm", action=argparse.BooleanOptionalAction, default=True,
        help="weight decay on normalisation layers and biases, too")  # fmt: skip
    add("--optimizer-args", type=named_number, nargs="+", default=[], metavar="NAME=NUMBER",
        help="further arguments of the optimizer: eta=0.002")  # fmt: skip
    add("--schedule", choices=["cosine", "step", "constant"], default="cosine")
    add("--milestones", type=integer(1), nargs="+", default=[100, 150], metavar="EPOCH",
        help="where --schedule step multiplies the learning rate by 0.1")  # fmt: skip
    add("--warm-up", type=integer(0), metavar="BATCHES",
        help="from lr/10 on; default a tenth of the run")  # fmt: skip

    group = parser.add_argument_group("SVRG")
    add = group.add_argument
    add("--svrg", action=argparse.BooleanOptionalAction, default=False)
    which = group.add_mutually_exclusive_group()
    which.add_argument(
        "--coefficient", type=number_or_auto, default=1.0, help="a number, or auto; 1 is SVRG"
    )
    which.add_argument(
        "--alpha-decay", type=float, metavar="START", help="from START to 0 (alpha-SVRG: 0.75)"
    )
    add("--update-freq", type=integer(1), default=1, help="epochs from snapshot to snapshot")
    add("--lock", choices=["auto", "require", "off"], help="of the augmentation to the snapshot")
    add("--meter", action="store_true",
        help="measure the variance ratio; without --svrg, what it would be")  # fmt: skip
    add("--max-variance-ratio", type=float, metavar="RATIO",
        help="the variance ratio from which on SVRG does not pay: 0.333")  # fmt: skip
    add("--recheck-every-n-epochs", type=integer(1), metavar="EPOCHS",
        help="measure again after SVRG was switched off")  # fmt: skip
    return show_defaults(parser)


def _check(options: argparse.Namespace, given: set[str]) -> None:
    """End with a sentence where options do not fit each other or the machine."""
    for name in _OF_SVRG:
        if name in given and not options.svrg:
            option = name.replace("_", "-")
            raise SystemExit(f"--{option} needs --svrg: it says how variance reduction is done")
    if "milestones" in given and options.schedule != "step":
        raise SystemExit(
            f"--milestones needs --schedule step, got --schedule {options.schedule}: it says where "
            "that one multiplies the learning rate"
        )
    if options.dtype == "float16" and not options.gpu:
        raise SystemExit(
            "--dtype float16 needs --gpu: MXNet has no float16 matrix product on CPU, so no Dense "
            "layer; --dtype bfloat16 runs there"
        )
    if options.gpu and options.devices > num_gpus():
        raise SystemExit(
            f"--gpu --devices {options.devices} needs as many GPUs, MXNet sees {num_gpus()}: leave "
            "out --gpu, or install a build of MXNet with CUDA"
        )
    if options.schedule == "step" and max(options.milestones) >= options.epochs:
        raise SystemExit(
            f"--milestones must be below --epochs {options.epochs}, got {options.milestones}: the "
            "learning rate is multiplied by 0.1 at the begin of these epochs"
        )
