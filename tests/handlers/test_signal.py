"""SignalHandler: real signals, from this process to itself."""

import faulthandler
import logging
import os
import signal
import threading

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import problems
import pytest
import runs
from gluon_svrg.checkpoint import storage
from gluon_svrg.events import EVENTS
from mxnet.gluon import nn

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1]
RNG = np.random.default_rng(0)
BATCHES = [(RNG.normal(size=(4, 6)), RNG.integers(0, 3, 4)) for _ in range(3)]


@pytest.fixture(autouse=True)
def at_rest():
    """Whatever a test does, the signals are afterwards what they were."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield before
    for number, handler in before.items():
        signal.signal(number, handler)


def installed():
    return {number: signal.getsignal(number) for number in SIGNALS}


class Listener(*EVENTS.values()):
    """Does something at one event of one batch, once; counts the batches that are trained."""

    def __init__(self, event=None, batch=0, action=None, priority=0):
        self.event = event
        self.batch = batch
        self.action = action
        self.priority = priority
        self.batches = 0

    def _hear(self, event, estimator):
        self.batches += event == "gradient_ready"
        if event == self.event and estimator.position.batch == self.batch:
            self.event = None
            self.action()


for name in EVENTS:
    setattr(Listener, name, lambda self, estimator, *a, _n=name, **k: self._hear(_n, estimator))


def send(*numbers):
    return lambda: [os.kill(os.getpid(), number) for number in numbers] and None


def fit(*handlers, seed=0, data=BATCHES, val_data=None, epochs=3, **arguments):
    gs.seed_everything(seed)
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(4, in_units=6), nn.Dropout(0.3), nn.Dense(3, in_units=4))
    net.initialize(mx.init.Normal(0.5))
    estimator = runs.estimator_of(net, params={"momentum": 0.9}, logger="test_signal")
    result = estimator.fit(
        data, val_data, epochs=epochs, event_handlers=[gs.SVRGHandler(), *handlers], **arguments
    )
    return result, problems.weights_of(net)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The weights of a run that is not interrupted."""
    return fit(gs.CheckpointHandler(tmp_path_factory.mktemp("whole")), val_data=BATCHES)[1]


# At which event of which batch the signal comes, the checkpoint that is written, and how many
# batches are trained.
MOMENTS = {
    "train_begin": (0, None, 0),
    "epoch_begin": (3, "epoch-1-batch-3-begun", 3),
    "batch_begin": (4, "epoch-1-batch-5", 5),
    "gradient_ready": (4, "epoch-1-batch-5", 5),
    "batch_end": (5, "epoch-1-batch-6", 6),
    "epoch_end": (6, "epoch-2-batch-6", 6),
}


@pytest.mark.slow
@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("event", MOMENTS)
def test_the_batch_is_finished_and_a_checkpoint_written(
    event, number, at_rest, whole, tmp_path, caplog
):
    batch, name, trained = MOMENTS[event]
    listener = Listener(event, batch, send(number), priority=10)  # after the SignalHandler
    with caplog.at_level(logging.WARNING, "test_signal"):
        result, _ = fit(listener, gs.CheckpointHandler(tmp_path), val_data=BATCHES)
    name_and_way = ("Ctrl-C", "press") if number == signal.SIGINT else (number.name, "send")
    line = "{}: stopping after this batch; {} it again to stop at once".format(*name_and_way)
    assert caplog.messages == [line]
    assert result.stop_reason is gs.StopReason.SIGNAL
    assert listener.batches == trained
    assert installed() == at_rest
    assert name is None or (tmp_path / name).is_dir()
    checkpoints = gs.CheckpointHandler(tmp_path)
    seed = 1 if name else 0  # without a checkpoint the run starts from the beginning
    resumed, weights = fit(checkpoints, seed=seed, val_data=BATCHES, resume="auto")
    assert problems.same(weights, whole)
    assert resumed.stop_reason is gs.StopReason.EPOCHS_DONE
    assert [row["epoch"] for row in resumed.history] == [0, 1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("batch", [4, 5])
@pytest.mark.parametrize("priority", [10, float("inf")])
def test_a_signal_in_a_safe_point(priority, batch, whole, tmp_path):
    """Before CheckpointHandler and, with its priority but later in the list, after it."""
    listener = Listener("safe_point", batch, send(signal.SIGTERM), priority)
    result, _ = fit(gs.CheckpointHandler(tmp_path), listener, val_data=BATCHES)
    assert result.stop_reason is gs.StopReason.SIGNAL
    assert max(storage.list_checkpoints(tmp_path)).batch == listener.batches
    _, weights = fit(gs.CheckpointHandler(tmp_path), seed=1, val_data=BATCHES, resume="auto")
    assert problems.same(weights, whole)


@pytest.mark.slow
def test_during_the_full_pass_the_epoch_has_not_begun(whole, tmp_path):
    class Data(list):
        """A signal comes in the second epoch's full pass, which is the third pass over the data."""

        passes = 0

        def __iter__(self):
            self.passes += 1
            for index, batch in enumerate(super().__iter__()):
                if (self.passes, index) == (3, 1):
                    os.kill(os.getpid(), signal.SIGINT)
                yield batch

    listener = Listener()
    result, _ = fit(listener, gs.CheckpointHandler(tmp_path), data=Data(BATCHES))
    assert result.stop_reason is gs.StopReason.SIGNAL
    assert listener.batches == 3
    assert max(storage.list_checkpoints(tmp_path)).name == "epoch-1-batch-3"
    _, weights = fit(gs.CheckpointHandler(tmp_path), seed=1, resume="auto")
    assert problems.same(weights, whole)


@pytest.mark.parametrize("first", SIGNALS)
def test_a_second_ctrl_c_raises_at_once(first, at_rest, tmp_path):
    at_rest[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
    listener = Listener("gradient_ready", 4, send(first, signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        fit(listener, gs.CheckpointHandler(tmp_path))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is at_rest[signal.SIGTERM]
    assert [path.name for path in tmp_path.iterdir()] == ["epoch-1-batch-3"]


def test_a_second_sigterm_is_as_it_was_before(tmp_path):
    heard = []
    signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    listener = Listener("gradient_ready", 4, send(signal.SIGTERM, signal.SIGTERM))
    result, _ = fit(listener, gs.CheckpointHandler(tmp_path))
    assert heard == [signal.SIGTERM]
    assert result.stop_reason is gs.StopReason.SIGNAL


@pytest.mark.slow
@pytest.mark.parametrize("event", [*MOMENTS, "train_end"])
def test_after_an_exception_the_signals_are_as_before(event, tmp_path):
    def own(number, frame):
        pass

    class BrokenError(Exception):
        pass

    def fail():
        raise BrokenError

    signal.signal(signal.SIGTERM, own)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    before = installed()
    batch = {"train_begin": 0, "epoch_begin": 3, "epoch_end": 6, "train_end": 9}.get(event, 4)
    for priority in (-10, 10):  # before and after the SignalHandler
        with pytest.raises(BrokenError):
            fit(
                Listener(event, batch, fail, priority),
                gs.CheckpointHandler(tmp_path / str(priority)),
            )
        assert installed() == before


def test_while_the_run_goes_on_they_are_the_handlers(at_rest, tmp_path):
    seen = []
    handler = gs.SignalHandler()
    listener = Listener("batch_end", 1, lambda: seen.append(installed()))
    fit(listener, handler, epochs=1)
    assert all(seen[0][number] not in (at_rest[number], None) for number in SIGNALS)
    assert installed() == at_rest
    listener = Listener("batch_end", 1, lambda: seen.append(installed()))
    fit(listener, handler, epochs=1)  # a second time
    assert all(seen[1][number] is not at_rest[number] for number in SIGNALS)
    assert installed() == at_rest


def test_without_checkpoints_the_signals_stay(at_rest):
    seen = []
    fit(Listener("batch_end", 1, lambda: seen.append(installed())), epochs=1)
    assert seen == [at_rest]


def test_in_another_thread_nothing_is_installed(at_rest, tmp_path):
    seen, results = [], []
    listener = Listener("batch_end", 1, lambda: seen.append(installed()))

    def run():
        results.append(fit(listener, gs.CheckpointHandler(tmp_path), epochs=1)[0])

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [at_rest]
    assert results[0].stop_reason is gs.StopReason.EPOCHS_DONE
    assert installed() == at_rest


def test_a_handler_that_python_did_not_install():
    """`signal.signal` returns None for it, and does not take None back."""
    handler = gs.SignalHandler()
    handler._before = {signal.SIGTERM: None}
    handler.train_end(None)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


# --- The argument ---------------------------------------------------------------------------------

CATCHABLE = sorted(
    signal.valid_signals()
    - {signal.SIGKILL, signal.SIGSTOP}
    - {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}
    - {32, 33}  # glibc keeps these for its threads
)


@pytest.mark.parametrize("number", CATCHABLE, ids=str)
def test_every_signal_that_can_be_handled(number, tmp_path):
    before = signal.getsignal(number)
    listener = Listener("gradient_ready", 1, send(number))
    handlers = [gs.SignalHandler(signals=[number]), gs.CheckpointHandler(tmp_path)]
    result, _ = fit(listener, *handlers)
    assert result.stop_reason is gs.StopReason.SIGNAL
    assert listener.batches == 2
    assert (tmp_path / "epoch-0-batch-2").is_dir()
    assert signal.getsignal(number) == before


def test_only_the_signals_that_were_given(at_rest):
    seen = []
    listener = Listener("batch_end", 1, lambda: seen.append(installed()))
    fit(listener, gs.SignalHandler(signals=[signal.SIGTERM]), epochs=1)
    changed = {number for number in SIGNALS if seen[0][number] is not at_rest[number]}
    assert changed == {signal.SIGTERM}
    assert installed() == at_rest


WRONG_SIGNALS = {
    "one": (signal.SIGTERM, TypeError, r"a list of signals, got <Signals.SIGTERM: 15>: give a lis"),
    "a name": (
        "SIGTERM",
        TypeError,
        r"a list of signals, got 'SIGTERM': give a list such as \[sig",
    ),
    "names": (["SIGTERM"], TypeError, r"must hold signals, got 'SIGTERM': give a list"),
    "a bool": ([True], TypeError, r"must hold signals, got True: give a list"),
    "a float": ([15.0], TypeError, r"must hold signals, got 15.0: give a list"),
    "none at all": ([], ValueError, r"signals is empty, so that no signal would end the run: give"),
    "too small": ([0], ValueError, r"has 0, which is no signal of this system: give"),
    "too large": ([65], ValueError, r"has 65, which is no signal of this system: give"),
    **{
        name: ([getattr(signal, name)], ValueError, rf"has {name}, after which no run can .*: give")
        for name in ("SIGKILL", "SIGSTOP", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL")
    },
}


@pytest.mark.parametrize("name", WRONG_SIGNALS)
def test_signals_that_cannot_be(name):
    signals, error, message = WRONG_SIGNALS[name]
    with pytest.raises(error, match=message):
        gs.SignalHandler(signals=signals)


def by_python():
    signal.signal(signal.SIGUSR1, lambda number, frame: None)


def ignored():
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)


def by_c():
    faulthandler.register(signal.SIGUSR1)


@pytest.mark.parametrize("install", [by_python, ignored, by_c])
def test_a_sigusr1_handler_of_the_user_stays(install, at_rest, tmp_path, capfd):
    """By default; the other signals still end the run."""
    install()
    try:
        listener = Listener("gradient_ready", 4, send(signal.SIGUSR1))
        result, _ = fit(listener, gs.CheckpointHandler(tmp_path / "default"))
        assert result.stop_reason is gs.StopReason.EPOCHS_DONE
        assert ("Current thread" in capfd.readouterr().err) == (install is by_c)
        listener = Listener("gradient_ready", 4, send(signal.SIGTERM))
        result, _ = fit(listener, gs.CheckpointHandler(tmp_path / "other"))
        assert result.stop_reason is gs.StopReason.SIGNAL
    finally:
        faulthandler.unregister(signal.SIGUSR1)
    before = signal.getsignal(signal.SIGUSR1)
    listener = Listener("gradient_ready", 4, send(signal.SIGUSR1))
    handler = gs.SignalHandler(signals=[signal.SIGUSR1])
    result, _ = fit(listener, handler, gs.CheckpointHandler(tmp_path / "named"))
    assert result.stop_reason is gs.StopReason.SIGNAL
    assert signal.getsignal(signal.SIGUSR1) == before
