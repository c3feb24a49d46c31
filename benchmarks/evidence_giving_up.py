"""SVRG that steps aside: where it stays on, where it does not, and what it costs then.

Lines whose method is 'gives up' are of version 0.6.0, which made a full pass before it measured.
"""

from __future__ import annotations

import itertools
import time

import evidence_common as common
import gluon_svrg as gs
import mxnet as mx
import report
from gluon_svrg.events import BatchBegin, BatchEnd
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
SEEDS = range(3)
# A run that is the plain one from a moment on is ended then: its cost is known.
ARE_ENDED = ("mlp", "lenet", "resnet20")
BEFORE, NOW = "gives up", "measures first"
ABOVE = 1 / 3


class Ends(BatchEnd):
    """Ends the run once SVRG has stayed off in the second epoch as well."""

    priority = 2000

    def __init__(self, svrg: gs.SVRGHandler) -> None:
        self._svrg = svrg

    def batch_end(self, estimator: gs.Estimator, *args: object, **kwargs: object) -> None:
        epoch, criterion = estimator.position.epoch, self._svrg.criterion
        if epoch == 1 and criterion.off_since == 0 and not criterion.must_measure(epoch):
            estimator.stop()


class Corrections(BatchBegin):
    """Counts the corrected batches of each epoch."""

    priority = 2000

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}

    def batch_begin(self, estimator: gs.Estimator, *args: object, **kwargs: object) -> None:
        epoch = estimator.position.epoch
        is_on = estimator.trainer.full_gradient is not None
        self.counts[epoch] = self.counts.get(epoch, 0) + is_on


def work(job: common.Row) -> common.Row:
    """Time one run; a job has a `method`: 'plain' or with SVRG."""
    model, is_plain = job["model"], job["method"] == "plain"
    rate, momentum, samples = MODELS[model]
    gs.seed_everything(job["seed"])
    is_deep = model == "resnet20"
    train, test = common.fashion_mnist(32 if is_deep else 28, samples)
    net = common.make_net(model.split(",")[0])
    settings = {"learning_rate": rate, "momentum": momentum, "wd": 1e-4}
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", settings)
    estimator = gs.Estimator(
        net, gluon.loss.SoftmaxCELoss(), mx.metric.Loss("loss"), trainer=trainer
    )
    svrg, meter = gs.SVRGHandler(max_variance_ratio=ABOVE), gs.VarianceHandler()
    corrections = Corrections()
    handlers = [svrg, meter, corrections, *([Ends(svrg)] if model in ARE_ENDED else [])]
    data = common.loader_of(train, common.BATCH_SIZE, seed=job["seed"], augments=is_deep)
    list(data)  # what is kept is prepared
    begin = time.perf_counter()
    result = estimator.fit(
        data,
        epochs=EPOCHS,
        event_handlers=[] if is_plain else handlers,
    )
    mx.nd.waitall()
    seconds = time.perf_counter() - begin
    is_whole = result.epochs_run == EPOCHS
    return {
        "seconds": seconds,
        "gave_up": None if is_plain else svrg.criterion.off_since,
        "records": [[r.epoch, r.at, r.ratio, r.average] for r in meter.records],
        "corrected": [count / len(data) for count in corrections.counts.values()],
        "evaluations": svrg.gradient_evaluations + meter.gradient_evaluations,
        "accuracy": common.loss_and_accuracy(net, test)[1] if is_whole else None,
    }


def jobs() -> list[common.Row]:
    return [{"model": model, "seed": seed, "method": NOW} for model in MODELS for seed in SEEDS]


def corrected_of(run: common.Row) -> list[float]:
    """Return the share of each epoch's batches that were corrected; of 0.6.0 from its decisions."""
    if "corrected" in run:
        return list(run["corrected"])
    shares, is_on, look = [1.0] * EPOCHS, True, None
    for epoch, records in itertools.groupby(run["records"], key=lambda record: record[0]):
        if not is_on:
            shares[epoch] = 0.0
        for _, at, _, average in records:
            if is_on and average > ABOVE:
                is_on, look = False, epoch + 1
                shares[epoch:] = [at] + [0.0] * (EPOCHS - epoch - 1)
            elif not is_on and epoch == look and at == 1 and average <= ABOVE:
                is_on = True
                shares[epoch + 1 :] = [1.0] * (EPOCHS - epoch - 1)
    return shares


def epochs_on(shares: list[float]) -> str:
    """Return the epochs with SVRG in words: '2 to 9', '0 (2 %)'."""
    texts = []
    numbered = enumerate(shares)
    for is_on, group in itertools.groupby(numbered, key=lambda item: item[1] > 0):
        if not is_on:
            continue
        epochs = list(group)
        (first, share), (last, _) = epochs[0], epochs[-1]
        text = str(first) if share == 1 else f"{first} ({100 * share:.0f} %)"
        texts.append(text if first == last else f"{text} to {last}")
    return ", ".join(texts) or "none"


def section(results: common.Results) -> str:
    rows = []
    for model, (_, _, samples) in MODELS.items():
        for seed in SEEDS:
            cells: list[object] = [model, seed]
            for method in (BEFORE, NOW):
                run = next(iter(results.of(model=model, seed=seed, method=method)), None)
                if run is None:
                    cells += [""] * 2
                    continue
                cost = run["evaluations"] / (EPOCHS * samples)
                cells += [epochs_on(corrected_of(run)), f"{100 * cost:.1f} %"]
            run = next(iter(results.of(model=model, seed=seed, method=NOW)), None)
            if run is None:
                cells.append("")
            else:
                _, at, _, average = [r for r in run["records"] if r[0] == 0][-1]
                is_on = run["corrected"][0] > 0
                cells.append(
                    "on in epoch 0" if is_on else f"off at {100 * at:.0f} %: {average:.2g}"
                )
            if any(cells[2:]):
                rows.append(tuple(cells))
    header = [
        "network",
        "seed",
        "0.6.0: SVRG is on in epochs",
        "more gradients",
        "now: SVRG is on in epochs",
        "more gradients",
        "first epoch: decision, average ratio",
    ]
    return report.markdown_table(header, rows)


def draw(_: common.Results) -> None:
    """Draw nothing: the table says it."""
