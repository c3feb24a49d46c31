"""What the workers of the tests of metrics do: see tests/cluster.py."""

import gluon_svrg as gs
import mxnet as mx
import numpy as np
from gluon_svrg import workers
from workers.loop_programs import FEATURES, loader


class Absolute(mx.metric.EvalMetric):
    """A metric of a user's own, which looks at whole batches."""

    def __init__(self):
        super().__init__("absolute")

    def update(self, labels, preds):
        for _label, pred in zip(labels, preds, strict=True):
            self.sum_metric += float(pred.asnumpy().max())
            self.num_inst += 1


class LossOfItsOwn(mx.metric.Loss):
    """A subclass of one that is added up."""

    def update(self, _, preds):
        for pred in preds:
            self.sum_metric += float((pred.asnumpy() ** 2).sum())
            self.num_inst += pred.size


def spread(label, pred):
    return float(pred.std() + label.mean())


def probabilities(classes):
    mx.random.seed(5)
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(classes, in_units=FEATURES))
    net.add(mx.gluon.nn.HybridLambda("softmax"))
    net.initialize(mx.init.Normal(0.5))
    net.cast("float64")
    return net


def two_heads():
    class Heads(mx.gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.one = mx.gluon.nn.Dense(3, in_units=FEATURES)
            self.two = mx.gluon.nn.Dense(1, in_units=FEATURES)

        def hybrid_forward(self, F, x):
            return {"class": self.one(x), "value": self.two(x)}

    net = Heads()
    net.initialize(mx.init.Normal(0.5))
    net.cast("float64")
    return net


class LossOfHeads(mx.gluon.loss.Loss):
    """Of both outputs."""

    def __init__(self):
        super().__init__(None, 0)

    def forward(self, pred, label):
        value = mx.nd.mean(mx.nd.square(pred["value"] - label["value"]), axis=1)
        return value - mx.nd.pick(mx.nd.log_softmax(pred["class"]), label["class"])


def of_classes(samples, classes, batch_size=8):
    rng = np.random.RandomState(4)
    data = mx.nd.array(rng.normal(size=(samples, FEATURES)), dtype="float64")
    label = mx.nd.array(rng.randint(classes, size=samples), dtype="float64")
    return gs.data.ArrayLoader(data, label, batch_size=batch_size)


def of_numbers(samples, batch_size=8):
    rng = np.random.RandomState(4)
    data = mx.nd.array(rng.normal(size=(samples, FEATURES)), dtype="float64")
    return gs.data.ArrayLoader(data, data[:, :1] * 2 + data[:, 1:2], batch_size=batch_size)


def of_heads(samples, batch_size=8):
    rng = np.random.RandomState(4)
    batches = []
    for begin in range(0, samples, batch_size):
        number = min(batch_size, samples - begin)
        data = mx.nd.array(rng.normal(size=(number, FEATURES)), dtype="float64")
        classes = mx.nd.array(rng.randint(3, size=number), dtype="float64")
        batches.append((data, {"class": classes, "value": data[:, :1]}))
    return batches


def fit_and_evaluate(net, loss, make_metrics, train, val, contexts):
    for param in net.collect_params().values():
        param.reset_ctx(contexts)
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 0.05})
    estimator = gs.Estimator(
        net, loss, make_metrics(), make_metrics(), trainer=trainer, context=contexts
    )
    handler = gs.MetricHandler(estimator.train_metrics, max_batches=2)
    # Its metrics want probabilities, and the loss would apply softmax again.
    fit = {"epochs": 2, "event_handlers": [handler], "verbose": 0, "sanity_check": False}
    history = estimator.fit(train, val, **fit).history
    evaluation = estimator.evaluate(val, verbose=0)
    counts = [
        [int(part.num_inst), int(part.global_num_inst)]
        for metric in [*estimator.train_metrics, *estimator.val_metrics]
        for part in gs.run.metrics.flatten_metrics(metric)
    ]
    rows = [{k: v for k, v in row.items() if k.startswith(("train", "valid"))} for row in history]
    return {"rows": rows, "evaluation": evaluation, "counts": counts}


def cases():
    metric = mx.metric
    cross_entropy = mx.gluon.loss.SoftmaxCrossEntropyLoss()

    def additive():
        return [metric.Accuracy(), metric.TopKAccuracy(2), metric.Loss("own")]

    def of_probabilities():
        composite = metric.CompositeEvalMetric()
        composite.add(metric.CrossEntropy())
        composite.add(metric.Accuracy(name="part"))
        return [composite, metric.Perplexity(None), spread, Absolute(), LossOfItsOwn("squares")]

    def binary():
        return [metric.F1(), metric.MCC(), metric.F1(average="micro", name="micro")]

    def regression():
        return [metric.MAE(), metric.MSE(), metric.RMSE(), metric.PearsonCorrelation()]

    def heads():
        return [
            metric.Accuracy(output_names=["class"], label_names=["class"]),
            metric.MAE(output_names=["value"], label_names=["value"]),
        ]

    one = [mx.cpu()]
    return {
        "additive": lambda c: (
            probabilities(3),
            cross_entropy,
            additive,
            of_classes(41, 3),
            of_classes(17, 3),
            c,
        ),
        "whole batches": lambda c: (
            probabilities(3),
            cross_entropy,
            of_probabilities,
            of_classes(41, 3),
            of_classes(17, 3),
            c,
        ),
        "binary": lambda c: (
            probabilities(2),
            cross_entropy,
            binary,
            of_classes(40, 2),
            of_classes(17, 2),
            c,
        ),
        "regression": lambda c: (
            mx_dense(),
            mx.gluon.loss.L2Loss(),
            regression,
            of_numbers(43),
            of_numbers(19),
            c,
        ),
        "heads": lambda c: (two_heads(), LossOfHeads(), heads, of_heads(41), of_heads(17), one),
    }


def mx_dense():
    mx.random.seed(5)
    net = mx.gluon.nn.Dense(1, in_units=FEATURES)
    net.initialize(mx.init.Normal(0.5))
    net.cast("float64")
    return net


def values():
    """Return the figures of each case, together and alone."""
    one, two = [mx.cpu()], [mx.cpu(0), mx.cpu(1)]
    together = {name: fit_and_evaluate(*case(one)) for name, case in cases().items()}
    contexts = {name: fit_and_evaluate(*case(two)) for name, case in cases().items()}
    between = in_between()
    with workers.single_process():
        alone = {name: fit_and_evaluate(*case(one)) for name, case in cases().items()}
    return [together, contexts, alone, between]


def in_between():
    """Return what a read in the middle of an epoch gives, here and at the end."""
    from workers.loop_programs import At, estimator_for

    seen = []

    def read(estimator):
        if estimator.workers.is_first:  # nobody else does
            seen.append(estimator.train_metrics[0].get()[1])

    estimator = estimator_for(metrics="acc")
    at = [At("batch_end", batch, None, read) for batch in range(6)]
    estimator.fit(loader(), epochs=1, event_handlers=at, verbose=0)
    return [seen, estimator.train_metrics[0].get()[1]]
