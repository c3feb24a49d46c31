"""ResNet-20 on Fashion-MNIST by the presets of recipes/cifar_resnet.py."""

from __future__ import annotations

import json
import sys

import evidence_common as common
import report

sys.path.append(str(common.ROOT / "recipes"))
PART = "presets"
PRESETS = ("nag", "lars", "signum")


def folder(job: common.Row) -> str:
    return str(common.ROOT / "runs" / "evidence" / f"{job['preset']}-{job['seed']}")


def work(job: common.Row) -> common.Row:
    import cifar_resnet

    preset = f"fashion-mnist-{job['preset']}"
    arguments = ["--preset", preset, "--seed", str(job["seed"]), "--out", folder(job)]
    cifar_resnet.main(arguments)
    return result_of(folder(job))


def result_of(directory: str) -> common.Row:
    with open(f"{directory}/history.csv", encoding="utf-8") as file:
        names, *lines = (line.strip().split(",") for line in file)
    rows = [dict(zip(names, line, strict=True)) for line in lines]
    with open(f"{directory}/options.json", encoding="utf-8") as file:
        options = json.load(file)
    return {
        "accuracies": [float(row["validation accuracy"]) for row in rows],
        "loss": float(rows[-1]["training loss"]),
        "seconds": sum(float(row["seconds"]) for row in rows),
        "lr": options["lr"],
    }


def jobs() -> list[common.Row]:
    return list(common.product(seed=[0, 1, 2], preset=list(PRESETS)))


def section(results: common.Results) -> str:
    rows = []
    for preset in PRESETS:
        runs = results.of(preset=preset)
        if runs:
            rows.append(
                (
                    f"`fashion-mnist-{preset}`",
                    runs[0]["lr"],
                    *(common.spread([r["accuracies"][e] for r in runs], 2, 100) for e in range(3)),
                    common.spread([run["loss"] for run in runs], 3),
                )
            )
    header = [
        "preset",
        "learning rate",
        "test accuracy after 1 epoch, %",
        "2",
        "3",
        "training loss",
    ]
    return report.markdown_table(header, rows)


def draw(_: common.Results) -> None:
    """Draw nothing: the table says it."""
