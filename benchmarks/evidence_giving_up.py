"""SVRG that steps aside: where it stays on, where it does not, and what it costs then."""

from __future__ import annotations

import time

import evidence_common as common
import gluon_svrg as gs
import mxnet as mx
import report
from mxnet import gluon

PART = "giving_up"
# Learning rate, momentum, training samples.
MODELS = {
    "softmax": (0.02, 0.0, 60_000),
    "mlp": (0.1, 0.0, 60_000),
    "lenet": (0.05, 0.0, 6_400),
    "resnet20": (0.1, 0.9, 12_800),
}
EPOCHS = 10


def work(job: common.Row) -> common.Row:
    """Time one run; a job has a `method`: 'plain' or 'gives up'."""
    rate, momentum, samples = MODELS[job["model"]]
    gs.seed_everything(job["seed"])
    is_deep = job["model"] == "resnet20"
    train, test = common.fashion_mnist(32 if is_deep else 28, samples)
    net = common.make_net(job["model"])
    settings = {"learning_rate": rate, "momentum": momentum, "wd": 1e-4}
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", settings)
    estimator = gs.Estimator(
        net, gluon.loss.SoftmaxCELoss(), mx.metric.Loss("loss"), trainer=trainer
    )
    svrg, meter = gs.SVRGHandler(give_up_above=1 / 3), gs.VarianceHandler()
    handlers = [svrg, meter] if job["method"] == "gives up" else []
    data = common.loader_of(train, common.BATCH_SIZE, seed=job["seed"], augments=is_deep)
    list(data)  # what is kept is prepared
    begin = time.perf_counter()
    estimator.fit(data, epochs=EPOCHS, event_handlers=handlers)
    mx.nd.waitall()
    seconds = time.perf_counter() - begin
    loss, _ = common.loss_and_accuracy(net, train)
    return {
        "seconds": seconds,
        "gave_up": svrg.giving_up.epoch if handlers else None,
        "records": [[r.epoch, r.at, r.ratio, r.average] for r in meter.records],
        "evaluations": svrg.gradient_evaluations + meter.gradient_evaluations,
        "loss": loss,
        "accuracy": common.loss_and_accuracy(net, test)[1],
    }


def jobs() -> list[common.Row]:
    small = list(
        common.product(model=["softmax", "mlp", "lenet"], seed=[0, 1, 2], method=["gives up"])
    )
    return small + list(common.product(model=["resnet20"], seed=[0], method=["plain", "gives up"]))


def section(results: common.Results) -> str:
    rows = []
    for model, (_, _, samples) in MODELS.items():
        for seed in range(3):
            for run in results.of(model=model, seed=seed, method="gives up"):
                plain = results.of(model=model, seed=seed, method="plain")
                # Of those before it looked again.
                last = [r for r in run["records"] if run["gave_up"] in (None, r[0])][-1]
                cost = run["evaluations"] / (EPOCHS * samples)
                rows.append(
                    (
                        model,
                        seed,
                        "on at the end"
                        if run["gave_up"] is None
                        else f"epoch {run['gave_up']}, {100 * last[1]:.0f} %",
                        f"{last[3]:.2g}",
                        f"{100 * cost:.0f} %",
                        f"{100 * (run['seconds'] / plain[0]['seconds'] - 1):.0f} %"
                        if plain
                        else "",
                        f"{100 * run['accuracy']:.2f}",
                        f"{100 * plain[0]['accuracy']:.2f}" if plain else "",
                    )
                )
    header = [
        "network",
        "seed",
        "SVRG gives up in",
        "last averaged ratio",
        "more gradients",
        "more seconds",
        "test accuracy, %",
        "plain, %",
    ]
    return report.markdown_table(header, rows)


def draw(_: common.Results) -> None:
    """Draw nothing: the table says it."""
