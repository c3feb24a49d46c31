"""A CIFAR net of gluoncv on images, with any optimizer, with or without SVRG.

    python recipes/cifar_resnet.py
    python recipes/cifar_resnet.py --preset list
    python recipes/cifar_resnet.py --preset fashion-mnist-nag --out runs/nag
    python recipes/cifar_resnet.py --preset gluoncv-cifar10 --data-dir ~/cifar10 --download
    python recipes/cifar_resnet.py --preset fashion-mnist-nag --svrg --alpha-decay 0.75 --meter
    python recipes/cifar_resnet.py --svrg --coefficient auto --max-variance-ratio 0.333
    python recipes/cifar_resnet.py --augment --cutout 8 --mixup 0.2 --label-smoothing 0.1
    python recipes/cifar_resnet.py --epochs 50 --resume  # killed, started again, the same weights
    python -m gluon_svrg.launch -n 2 recipes/cifar_resnet.py --epochs 50 --resume

On deep networks plain SVRG rarely pays (Defazio & Bottou 2019). ``--svrg`` costs two gradients a
sample instead of one, or three where the gradients of all batches would not fit into a gibibyte.
``--meter`` tells what they bring on this very run; without ``--svrg``, what they would bring.

Writes into ``runs/cifar_resnet``, or where ``--out`` says: ``report.html`` with all that follows,
``curves.png``, ``history.csv``, ``options.json``, ``result.json``, and the exported network in
``model/``, for ``gluon_svrg.deploy.Predictor``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import interruption
import cifar_data
import gluon_svrg as gs
import mxnet as mx
import run_report
from cifar_options import parse
from gluon_svrg import deploy
from gluon_svrg.data import ArrayLoader, transforms
from gluon_svrg.deploy.model_dir import check_target
from gluon_svrg.events import BatchBegin, EpochEnd
from gluon_svrg.optimizer import exclude_from_decay
from gluoncv.model_zoo import get_model
from mxnet import gluon
from mxnet.contrib import amp
from one_voice import is_first_worker

CLASSES = 10


class GradientEvaluations(BatchBegin, EpochEnd):
    """Puts into the history how many samples' gradients the run has computed, all in all.

    Attributes
    ----------
    has_trained : bool
        Whether a batch was begun, after a resume too.
    """

    def __init__(self, samples: int, others: Sequence[gs.SVRGHandler | gs.VarianceHandler]) -> None:
        self._samples = samples
        self._others = others
        self.has_trained = False

    def batch_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Note that there is training."""
        self.has_trained = True

    def epoch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Count, before the row of the epoch is made."""
        position = estimator.position
        share = min(1.0, position.batch_in_epoch / estimator.data.num_batches)
        own = round((position.epoch + share) * self._samples)
        theirs = sum(handler.gradient_evaluations for handler in self._others)
        estimator.figures["gradient_evaluations"] = own + theirs


def make_loaders(
    data: cifar_data.Data, options: argparse.Namespace
) -> tuple[ArrayLoader, ArrayLoader]:
    """Return the batches for training, augmented as asked for, and those for testing."""
    before: list[transforms.Transform] = []
    after: list[transforms.Transform] = []
    try:
        if options.augment == "crop-flip":
            before.append(transforms.RandomCrop(pad=4))
        if options.augment != "none":
            before.append(transforms.RandomFlipLeftRight())
        if options.cutout:
            after.append(transforms.Cutout(options.cutout))
        if options.label_smoothing:
            after.append(transforms.OneHot(CLASSES, options.label_smoothing))
        if options.mixup:
            after.append(transforms.MixUp(CLASSES, options.mixup))
        train = cifar_data.loader(
            data,
            data.train,
            before,
            after,
            batch_size=options.batch_size,
            shuffle=True,
            last_batch=options.last_batch,
        )
    except (TypeError, ValueError) as error:
        raise SystemExit(f"the training data: {error}") from None
    return train, cifar_data.loader(data, data.test, batch_size=256)


def cifar_net(name: str, **settings: Any) -> gluon.HybridBlock:
    """Return a CIFAR net of gluoncv for ten classes; end with a sentence where there is none."""
    try:
        if not name.startswith("cifar_"):
            raise ValueError(f"{name!r} is no net for images of 32 x 32")
        return get_model(name, classes=CLASSES, **settings)
    except ValueError as error:
        raise SystemExit(
            f"--model must be a CIFAR net of gluoncv, such as cifar_resnet20_v1, "
            f"cifar_resnet56_v2 or cifar_wideresnet16_10: {str(error).splitlines()[0]}"
        ) from None


def make_net(
    options: argparse.Namespace, channels: int, contexts: list[mx.Context]
) -> gluon.HybridBlock:
    """Return the network for images with `channels` channels, initialised and hybridized."""
    net = cifar_net(options.model)
    net.initialize(mx.init.Xavier(magnitude=options.xavier_magnitude), ctx=contexts)
    net.hybridize(static_alloc=True)
    for context in contexts:
        net(mx.nd.zeros((1, channels, 32, 32), context))  # finishes the initialisation
    return net


def make_trainer(net: gluon.Block, options: argparse.Namespace) -> gs.SVRGTrainer:
    """Return the trainer, with the optimizer by its name."""
    parameters: dict[str, Any] = {"learning_rate": options.lr, "wd": options.wd}
    if options.optimizer in ("sgd", "nag", "lars", "signum"):
        parameters["momentum"] = options.momentum
    if not options.decay_on_norm:
        exempt = exclude_from_decay(net)
        if options.optimizer == "lars":
            parameters["exempt"] = exempt
    parameters |= dict(options.optimizer_args)
    # AMP scales the gradients that it reads, so they may not be updated in the kvstore.
    on_kvstore = False if options.dtype == "float16" else None
    try:
        trainer = gs.SVRGTrainer(
            net.collect_params(), options.optimizer, parameters, update_on_kvstore=on_kvstore
        )
    except (TypeError, ValueError) as error:
        raise SystemExit(f"--optimizer {options.optimizer}: {error}") from None
    if options.dtype == "float16":
        amp.init_trainer(trainer)  # a loss scale; bfloat16 has float32's range and needs none
    return trainer


def make_schedule(options: argparse.Namespace, batches: int) -> gs.ScheduleHandler:
    """Return the schedule of the learning rate for `batches` batches per epoch."""
    schedule = gs.schedules.constant(options.lr)
    fraction = 0.1 if options.warm_up is None else options.warm_up / (batches * options.epochs)
    fraction = min(fraction, 0.5)  # a trial of a few batches has to come down again, too
    if options.schedule == "cosine":
        schedule = gs.schedules.cosine(options.lr)
    elif options.schedule == "step":
        # The warm-up comes first and then all of the schedule; epochs count from the very begin.
        marks = [
            (epoch / options.epochs - fraction) / (1 - fraction) for epoch in options.milestones
        ]
        if min(marks) <= 0:
            raise SystemExit(
                f"--milestones must come after the warm-up, got {options.milestones}: give a "
                "smaller --warm-up"
            )
        schedule = gs.schedules.step(options.lr, marks)
    if fraction:
        schedule = gs.schedules.warm_up(schedule, fraction, options.lr / 10)
    return gs.ScheduleHandler("learning_rate", schedule)


def make_svrg(options: argparse.Namespace) -> list[gs.SVRGHandler | gs.VarianceHandler]:
    """Return what ``--svrg``, its variants and ``--meter`` ask for."""
    handlers: list[gs.SVRGHandler | gs.VarianceHandler] = []
    if options.meter or options.max_variance_ratio is not None:
        handlers.append(gs.VarianceHandler())
    if not options.svrg:
        return handlers
    coefficient = options.coefficient
    try:
        if options.alpha_decay is not None:
            coefficient = gs.linear_decay(options.alpha_decay, 0.0)
        svrg = gs.SVRGHandler(
            options.update_freq,
            coefficient=coefficient,
            lock=options.lock or "auto",
            max_variance_ratio=options.max_variance_ratio,
            recheck_every_n_epochs=options.recheck_every_n_epochs,
        )
    except (TypeError, ValueError) as error:
        raise SystemExit(f"--svrg: {error}") from None
    return [svrg, *handlers]


def make_estimator(
    net: gluon.Block, trainer: gs.SVRGTrainer, options: argparse.Namespace
) -> gs.Estimator:
    """Return the estimator. Soft labels have no training accuracy; those for testing are sparse."""
    is_soft = bool(options.mixup or options.label_smoothing)
    training: list[mx.metric.EvalMetric] = [mx.metric.Loss("loss")]
    if not is_soft:
        training.insert(0, mx.metric.Accuracy())
    return gs.Estimator(
        net,
        gluon.loss.SoftmaxCELoss(sparse_label=not is_soft),
        train_metrics=training,
        val_metrics=[mx.metric.Accuracy(), mx.metric.Loss("loss")],
        val_loss=gluon.loss.SoftmaxCELoss(),
        trainer=trainer,
    )


def export(
    net: gluon.HybridBlock, data: cifar_data.Data, options: argparse.Namespace, row: dict[str, Any]
) -> None:
    """Write the network as a model that runs without gluoncv and this recipe."""
    sample = cifar_data.loader(data, data.test, batch_size=1)[0][0]
    accuracy = row.get("validation accuracy")  # the weights of a broken-off epoch have none
    deploy.export(
        net,
        options.out / "model",
        sample,
        normalization=(data.mean, data.std, 1 / 255),
        class_names=data.class_names,
        metrics={} if accuracy is None else {"test accuracy": accuracy},
        overwrite=True,
    )


def write_report(
    fit: gs.FitResult, options: argparse.Namespace, arguments: Sequence[str] | None
) -> None:
    """Write the picture, the result and the page."""
    history = fit.history
    title = (
        f"{options.model}, {options.data}, {'SVRG, ' if options.svrg else ''}{options.optimizer}"
    )
    drawn = [{k: v for k, v in row.items() if k != "gradient_evaluations"} for row in history]
    run_report.write_figure(options.out / "curves.png", gs.History(drawn).plot(title=title))
    last = history[-1]
    # An epoch that was broken off has no evaluation.
    accuracies = [row["validation accuracy"] for row in history if "validation accuracy" in row]
    result = {
        "test accuracy": accuracies[-1] if accuracies else None,
        "best test accuracy": max(accuracies, default=None),
        "training loss": last["training loss"],
        "seconds": sum(history.column("seconds")),
        "gradient evaluations": last["gradient_evaluations"],
        "epochs": sum(row["complete"] for row in history),
        "complete": last["complete"],
    }
    run_report.write_json(options.out / "result.json", result)
    details = {
        "command": run_report.launch_line(__file__, arguments),
        "gradient evaluations": last["gradient_evaluations"],
        "options": vars(options),
    }
    fit.report(options.out / "report.html", title, details)


def prepare_out(options: argparse.Namespace) -> None:
    """Make the folder of the run; end with a sentence where the run could not be written into."""
    try:
        check_target(options.out / "model", overwrite=True)
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SystemExit(f"--out {options.out}: {error}") from None


def main(arguments: Sequence[str] | None = None) -> gs.FitResult:
    """Run the recipe; return the result of the training."""
    options = parse(arguments)
    if options.dtype != "float32":
        amp.init(options.dtype)  # before the network is made, and for the whole process
    gs.seed_everything(options.seed)
    is_first = is_first_worker()
    data = cifar_data.load(options)
    train, test = make_loaders(data, options)

    device = mx.gpu if options.gpu else mx.cpu
    contexts = [device(i) for i in range(options.devices)]
    net = make_net(options, data.train[0].shape[1], contexts)
    estimator = make_estimator(net, make_trainer(net, options), options)
    svrg = make_svrg(options)
    evaluations = GradientEvaluations(train.num_samples, svrg)
    handlers: list[gs.events.EventHandler] = [
        make_schedule(options, len(train)),
        gs.NaNGuardHandler(),
        *svrg,
        evaluations,
        gs.HistoryFileHandler(options.out / "history.csv", overwrite=True),
        gs.SignalHandler(),
    ]
    if options.resume:
        handlers.append(
            gs.CheckpointHandler(options.out / "checkpoints", monitor="validation accuracy")
        )
    prepare_out(options)
    try:
        result = estimator.fit(
            train,
            test,
            epochs=options.epochs,
            event_handlers=handlers,
            resume="auto" if options.resume else None,
        )
    except ValueError as error:
        if evaluations.has_trained or not options.resume:
            raise
        raise SystemExit(f"--resume: {error}; or start a new run with another --out") from None
    is_interrupted = result.stop_reason is gs.StopReason.SIGNAL
    if is_first and result.history:
        # A run that was done already keeps the report of its own options.
        if evaluations.has_trained or not (options.out / "report.html").is_file():
            run_report.write_json(options.out / "options.json", vars(options))
            write_report(result, options, arguments)
            export(net, data, options, result.history[-1])
        print(f"See {options.out}: report.html, curves.png, history.csv, and the exported model/")
    if is_interrupted:
        interruption.leave()
    return result


if __name__ == "__main__":
    interruption.run(main)
