"""GLMClassifierCV on data in chunks: folds, labels and room; what it says when it cannot."""

import numpy as np
import pytest
from provenglm import Chunks, GLMClassifier, GLMClassifierCV, GLMRegressor, constants
from provenglm.rows.chunks import LEAST_MEMORY
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import KFold

N = 300
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 4))
Y = (X[:, 0] + RNG.normal(size=N) > 0).astype(int)
PARTS = [X[:100], X[100:120], X[120:]]
LABELS = [Y[:100], Y[100:120], Y[120:]]


def forms(tmp_path):
    np.save(tmp_path / "x.npy", X)
    return {
        "array": X,
        "chunks": Chunks(PARTS),
        "memmap": np.load(tmp_path / "x.npy", mmap_mode="r"),
    }


@pytest.mark.parametrize("form", ["array", "chunks", "memmap"])
@pytest.mark.parametrize("scoring", [None, "neg_log_loss"])
def test_indices_from_the_end(tmp_path, monkeypatch, form, scoring):
    monkeypatch.setattr(constants, "SMALL", 0)
    data = forms(tmp_path)[form]
    cv = list(KFold(3).split(X))
    from_end = [(train - N, test - N) for train, test in cv]
    wanted = GLMClassifierCV([1.0], cv=cv, scoring=scoring).fit(X, Y)
    model = GLMClassifierCV([1.0], cv=from_end, scoring=scoring).fit(data, Y)
    np.testing.assert_allclose(model.scores_, wanted.scores_)


def test_labels_in_a_list():
    data, weight = Chunks(PARTS), np.arange(N) % 3.0
    weights = [weight[:100], weight[100:120], weight[120:]]
    model = GLMClassifierCV(3).fit(data, LABELS, weights)
    wanted = GLMClassifierCV(3).fit(X, Y, weight)
    assert np.array_equal(model.scores_, wanted.scores_)
    for one in (model, GLMClassifier().fit(X, Y)):
        assert one.score(data, LABELS) == one.score(X, Y)
        assert one.score(data, LABELS, weights) == one.score(X, Y, weight)
    for loss in ("squared", "poisson"):
        one = GLMRegressor(loss).fit(X, Y)
        assert one.score(data, LABELS, weights) == pytest.approx(one.score(X, Y, weight))


def test_what_the_last_fit_found_is_forgotten_where_there_is_none():
    model = GLMClassifierCV(3).fit(X, Y)
    names = set(vars(model))
    model.set_params(refit=False).fit(X[:, :3], Y)
    gone = {"objective_", "gap_", "decrement_", "history_", "solver_", "why_", "stop_reason_"}
    assert names - set(vars(model)) == gone
    model = GLMRegressor("huber").fit(X, Y)
    model.set_params(loss="squared").fit(X, Y)
    assert not hasattr(model, "scale_")


def test_no_fold_is_refused():
    with pytest.raises(ValueError, match=r"cv is \[\], which has no folds"):
        GLMClassifierCV(cv=[]).fit(X, Y)


def test_a_class_of_no_weight_and_a_scorer_that_needs_all():
    labels = np.where(np.arange(N) % 10 == 0, 2, Y)
    model = GLMClassifierCV(2, scoring="neg_log_loss", class_weight={2: 0.0})
    words = r"scoring is not defined for rows of the class 2, which has weight 0"
    with pytest.raises(ValueError, match=words):
        model.fit(X, labels)


class Looking:
    """A splitter that holds out the rows of greatest features."""

    def split(self, X, y, groups=None):
        order = np.argsort(np.asarray(X)[:, 0])
        yield order[:200], order[200:]

    def get_n_splits(self, *_):
        return 1


def test_a_splitter_may_look_at_the_rows():
    model = GLMClassifierCV([1.0], cv=Looking()).fit(X, Y)
    order = np.argsort(X[:, 0])
    wanted = GLMClassifierCV([1.0], cv=[(order[:200], order[200:])]).fit(X, Y)
    assert np.array_equal(model.scores_, wanted.scores_)
    with pytest.raises(TypeError, match="cv reads the rows of X, which is not possible for Chunks"):
        GLMClassifierCV([1.0], cv=Looking()).fit(Chunks(PARTS), Y)


@pytest.mark.parametrize(
    ("model", "count"),
    [
        (GLMClassifierCV([1e-2, 1e4], l1_ratios=[0.0, 0.5], max_iter=1, tol=1e-13), 3),
        (GLMClassifier(C=1e4, max_iter=1, tol=1e-13), 1),
        (GLMRegressor("huber", max_iter=1, tol=1e-13), 1),
    ],
)
def test_warnings_point_at_the_line_of_the_user(model, count):
    with pytest.warns(ConvergenceWarning) as seen:
        model.fit(X, Y)
    assert [one.filename for one in seen] == [__file__] * len(seen)
    assert len(seen) >= count - 1


@pytest.mark.parametrize(("room", "words"), [(1.05e6, "fold 1 of 5"), (6e6, "passes for 5 folds")])
def test_folds_go_one_by_one_where_their_shares_are_beyond_the_limit(
    solve_together, monkeypatch, caplog, room, words
):
    solve_together(True)
    monkeypatch.setattr(constants, "SMALL_DATA", 0)  # the rows stay where they are
    rows, labels = np.tile(X, (100, 1)), np.tile(Y, 100)
    data = Chunks([rows], memory_limit="64 MB")
    data.memory_limit = int(LEAST_MEMORY / 2 + room)
    model = GLMClassifierCV([1.0], cv=KFold(5), tol=1e-10, random_state=0, verbose=2)
    with caplog.at_level("INFO", "provenglm"):
        scores = model.fit(data, labels).scores_
    assert any(words in record.getMessage() for record in caplog.records)
    np.testing.assert_allclose(model.fit(rows, labels).scores_, scores, rtol=1e-9)
    assert data.memory_limit == int(LEAST_MEMORY / 2 + room)


def test_folds_for_which_there_is_no_room():
    data = Chunks([np.tile(X, (100, 1))], memory_limit="64 MB")
    data.memory_limit = 32_500_000
    with pytest.raises(ValueError, match="is 32 MB, and 40 folds of 30,000 rows need 66: give at"):
        GLMClassifierCV(1, cv=40).fit(data, np.tile(Y, 100))
