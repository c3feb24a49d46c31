"""The set-up that most tests share: an Estimator with an SVRGTrainer."""

import logging

import gluon_svrg as gs
from mxnet import gluon


def estimator_of(
    net,
    loss=None,
    train_metrics=None,
    optimizer="sgd",
    lr=0.1,
    *,
    params=None,
    logger=None,
    **arguments,
):
    """Return an Estimator with an SVRGTrainer.

    Parameters
    ----------
    net : Block or problem
        A problem has a network `net` and a `loss`.
    loss : Loss, optional
        By default the cross entropy of softmax.
    train_metrics : optional
        The metrics of the training.
    optimizer : str
        The name of the optimizer.
    lr : float
        The learning rate.
    params : dict, optional
        Further arguments of the optimizer.
    logger : str, optional
        The name of the Estimator's logger.
    **arguments
        Further arguments of the Estimator.
    """
    if not isinstance(net, gluon.Block):
        net, loss = net.net, loss or net.loss
    loss = loss or gluon.loss.SoftmaxCELoss()
    params = {"learning_rate": lr, **(params or {})}
    trainer = gs.SVRGTrainer(net.collect_params(), optimizer, params)
    estimator = gs.Estimator(net, loss, train_metrics, trainer=trainer, **arguments)
    if logger is not None:
        estimator.logger = logging.getLogger(logger)
    return estimator
