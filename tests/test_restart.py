"""What a run does that the launcher has started again."""

import logging

import gluon_svrg as gs
import mxnet as mx
import pytest
import runs
from gluon_svrg.reporting.history import MEASURED
from gluon_svrg.workers.supervision import ATTEMPT


def fit(folder, epochs, handlers=(), **arguments):
    mx.random.seed(1)
    net = mx.gluon.nn.Dense(2, in_units=3)
    net.initialize()
    estimator = runs.estimator_of(net, mx.gluon.loss.L2Loss())
    batches = [(mx.nd.ones((2, 3)) * i, mx.nd.ones((2, 2))) for i in range(3)]
    given = [gs.CheckpointHandler(folder), gs.HistoryFileHandler(folder / "log.csv"), *handlers]
    result = estimator.fit(batches, epochs=epochs, event_handlers=given, **arguments)
    rows = [{k: v for k, v in row.items() if k not in MEASURED} for row in result.history]
    return rows, net.weight.data().asnumpy().tolist()


@pytest.mark.slow
def test_it_goes_on_from_the_newest_checkpoint(tmp_path, monkeypatch, caplog):
    whole = fit(tmp_path / "whole", 4)
    fit(tmp_path / "broken", 2)
    monkeypatch.setenv(ATTEMPT, "1")
    with caplog.at_level(logging.INFO, "gluon_svrg"):
        assert fit(tmp_path / "broken", 4) == whole
    assert "restart detected: resuming from the newest checkpoint" in caplog.text


def test_it_begins_anew_without_a_checkpoint(tmp_path, monkeypatch):
    (tmp_path / "log.csv").write_text("of the attempt before\n")
    with pytest.raises(FileExistsError):
        fit(tmp_path, 1)
    monkeypatch.setenv(ATTEMPT, "1")
    rows, _ = fit(tmp_path, 1)
    assert len(rows) == 1
    assert (tmp_path / "log.csv").read_text().startswith("epoch,")


def test_a_resume_that_was_asked_for_stays_as_it_is(tmp_path, monkeypatch):
    whole = fit(tmp_path / "one", 3)
    monkeypatch.setenv(ATTEMPT, "2")
    assert fit(tmp_path / "other", 3, resume=tmp_path / "one") == whole
