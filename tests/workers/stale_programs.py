"""Parameters that some or all workers do not use: see tests/handlers/test_stale.py."""

import gluon_svrg as gs
from gluon_svrg import workers
from handlers import test_stale as stale

CASES = {
    **{f"plain {way}": (way, []) for way in stale.WAYS},
    **{f"SVRG {way}": (way, [None]) for way in stale.WAYS},
}


def fit(way, svrg):
    step = gs.GradientUpdateHandler(**way, ignore_stale_grad=True)
    weights = stale.fit(step, handlers=[gs.SVRGHandler() for _ in svrg])
    return [array.tolist() for array in weights]


def refused():
    net, trainer = stale.make()
    estimator = gs.Estimator(net, stale.gluon.loss.L2Loss(), trainer=trainer)
    estimator.fit(stale.ndarrays(), epochs=1, verbose=0)


def everything():
    results = {name: [fit(*arguments)] for name, arguments in CASES.items()}
    with workers.single_process():
        for name, arguments in CASES.items():
            results[name].append(fit(*arguments))
    return results
