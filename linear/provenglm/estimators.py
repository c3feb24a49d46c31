"""The estimators: linear models solved to a certificate, with scikit-learn's interface."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.random import RandomState
from scipy.special import expit, log_expit, log_softmax, softmax
from sklearn.base import ClassifierMixin, RegressorMixin

from provenglm.arguments import check_finite, check_number
from provenglm.base import LinearEstimator
from provenglm.centred import centred
from provenglm.data.large import joined
from provenglm.huber import solve_with_scale
from provenglm.losses import Logistic, Poisson, Softmax, Squared, explained_deviance
from provenglm.problem import Problem
from provenglm.solution import Settings, Solution, StopReason
from provenglm.solve import solve
from provenglm.types import NumPyArray, Verbose
from provenglm.validation import (
    check_features,
    check_labels,
    check_target,
    check_weight,
    classes_with_weight,
    with_class_weight,
)

__all__ = ["SVRGClassifier", "SVRGRegressor"]

_REGRESSION_LOSSES = ("squared", "huber", "poisson")


class SVRGClassifier(ClassifierMixin, LinearEstimator):  # type: ignore[misc]
    """Logistic regression of two or more classes, with L2 and L1 penalty, to a proven distance.

    It minimises what :class:`sklearn.linear_model.LogisticRegression` minimises, and takes its
    place in pipelines and searches. There is no solver to choose and no step to find, and features
    need no scaling: they are standardised inside, while objective and penalty stay those of the
    features as they are given. The intercept is not penalised.

    Parameters
    ----------
    C : float, default 1.0
        One over the strength of the penalty, above 0; ``math.inf`` for none.
    l1_ratio : float, default 0.0
        The share of the penalty that is on the sizes of the coefficients, not their squares, from 0
        to 1. Above 0, coefficients that do not pay are exactly 0.
    fit_intercept : bool, default True
        Whether there is an intercept.
    class_weight : dict, 'balanced' or None
        Weights by label, which multiply `sample_weight`; 'balanced' gives each class the same sum.
    tol : float, default 1e-6
        The fit ends when the objective is this near the optimum, relative to what was gained over
        the best constant prediction: proven by ``gap_``, or, where a proof is too dear, estimated
        by ``decrement_`` with a margin of twenty.
    max_iter : int, default 100
        The most snapshots (each a pass over all data, and as much again for the steps that follow).
    max_time : float, optional
        The most seconds; the fit ends at the next snapshot.
    metric : str, default 'auto'
        How steps are measured. 'auto' chooses by the size of the problem and by what it measures,
        and tells it in ``why_``; the others are for comparisons.
    warm_start : bool, default False
        Whether `fit` begins at the coefficients of the last fit.
    random_state : int, RandomState or None
        Which samples are drawn. It changes the way to the optimum, not the optimum.
    verbose : 'auto', 0, 1 or 2
        0 shows nothing; 2 a line a snapshot, by Python's logging (on the standard output where the
        program has not configured it); 1 a progress bar as well; 'auto' the bar on a terminal or in
        a notebook only.

    Attributes
    ----------
    classes_ : numpy.ndarray of shape (K,)
        The labels. A class whose samples all have the weight 0 is left out.
    coef_ : numpy.ndarray of shape (1, p) for two classes, else (K, p), float64
        The coefficients; for two classes those of ``classes_[1]``.
    intercept_ : numpy.ndarray of shape (1,) or (K,), float64
        For three or more classes, their mean is 0: a shift of all changes no probability.
    objective_ : float
        The mean of the losses, weighted, plus ``(1 - l1_ratio) / 2 ||coef_||^2 + l1_ratio
        ||coef_||_1`` over C S, with S the sum of all weights. Times C S, it is
        LogisticRegression's.
    gap_ : float
        ``objective_`` is proven to be at most this far above the optimum (up to rounding).
        See ``docs/linear/certificate.md``. Where nothing else can be proven, all that is known is
        that no loss is below its least value.
    decrement_ : float
        An estimate of the same distance, which is nearer the truth when the penalty is tiny.
    history_ : list of dict
        One for each snapshot: iteration, passes, seconds, objective, gap, decrement.
        ``pandas.DataFrame(model.history_)`` is a table of it.
    n_iter_ : int
        Snapshots (or Newton's iterations).
    solver_, why_, stop_reason_ : str
        Which way was taken; why, with the numbers; why it ended.
    n_features_in_ : int
        p.
    feature_names_in_ : numpy.ndarray of shape (p,)
        The columns' names, where X had some.

    See Also
    --------
    SVRGRegressor

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from provenglm import SVRGClassifier
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = SVRGClassifier(C=1.0).fit(X, y)
    >>> model.gap_ < 1e-6
    True
    """

    classes_: NumPyArray

    def __init__(
        self,
        C: float = 1.0,
        *,
        l1_ratio: float = 0.0,
        fit_intercept: bool = True,
        class_weight: Mapping[object, float] | str | None = None,
        tol: float = 1e-6,
        max_iter: int = 100,
        max_time: float | None = None,
        metric: str = "auto",
        warm_start: bool = False,
        random_state: int | RandomState | None = None,
        verbose: Verbose = 0,
    ) -> None:
        self.C = C
        self.l1_ratio = l1_ratio
        self.fit_intercept = fit_intercept
        self.class_weight = class_weight
        self.tol = tol
        self.max_iter = max_iter
        self.max_time = max_time
        self.metric = metric
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: object, y: object, sample_weight: object = None) -> SVRGClassifier:
        """Find the optimum.

        Parameters
        ----------
        X : array-like, sparse matrix or Chunks of shape (n, p)
            Numbers or booleans of any dtype and order. Not copied as a whole, unless they are few:
            up to eight million numbers. Of SciPy's sparse matrices and arrays, CSR of float32 or
            float64 is read as it is; other formats, and CSR with unsorted or duplicate entries
            (which are summed), are copied to it once, and so are whole numbers. `X` is not changed.
            Memory maps and :class:`Chunks` are read in blocks, several times.
        y : array-like of shape (n,)
            Labels: whole numbers, booleans or strings. Of Chunks it may be a list of arrays, one
            for each chunk, and so may `sample_weight`.
        sample_weight : array-like of shape (n,), optional
            Not negative. 2 is as good as a row that stands there twice, 0 leaves the row out.

        Returns
        -------
        SVRGClassifier
            Itself.

        Raises
        ------
        TypeError, ValueError
            If an argument cannot be; if X or y has NaN or infinity; if there are fewer than two
            classes; if a weight is negative or all are 0.

        Warns
        -----
        sklearn.exceptions.ConvergenceWarning
            If `tol` is not reached: how far the optimum is, and why. Ctrl-C warns as well, and the
            best point is kept.
        """
        name = type(self).__name__
        strength = check_number(
            "C", self.C, "one over the strength of the penalty; inf for none", 0, above=True
        )
        l1_ratio = self._checked_l1_ratio()
        features = check_features(self, X, reset=True)
        y, sample_weight = joined("y", y, X), joined("sample_weight", sample_weight, X)
        labels = check_labels(name, y, features)
        weight = with_class_weight(labels, check_weight(sample_weight, features), self.class_weight)
        classes, codes = classes_with_weight(name, labels, weight)
        count = len(classes)
        penalty = 1 / strength / (len(codes) if weight is None else float(weight.sum()))
        if math.isinf(penalty):
            raise ValueError(f"C is {strength:g}, and 1 / C is beyond float64: give a greater C")
        problem = Problem(
            features=features,
            target=codes,
            loss=Logistic() if count == 2 else Softmax(count),
            l2=penalty * (1 - l1_ratio),
            sample_weight=weight,
            fit_intercept=bool(self.fit_intercept),
            l1=penalty * l1_ratio,
        )
        start = self._start((1 if count == 2 else count, features.shape[1]))
        if start is not None and not np.array_equal(self.classes_, classes):
            raise ValueError(
                f"warm_start=True, and the last fit had the classes {self.classes_}, this one has "
                f"{classes}: set warm_start=False"
            )
        solution = self._run(lambda settings: centred(solve(problem, settings, start), problem))
        self.classes_ = classes
        self.coef_ = np.ascontiguousarray(solution.coef.T)
        self.intercept_ = np.array(solution.intercept, dtype=np.float64)
        return self

    def score(self, X: object, y: object, sample_weight: object = None) -> float:
        """Return the accuracy, as other classifiers do; y and weights as in `fit`."""
        y, sample_weight = joined("y", y, X), joined("sample_weight", sample_weight, X)
        return float(super().score(X, y, sample_weight))

    def decision_function(self, X: object) -> NumPyArray:
        """Return the scores, float64: (n,) for two classes (above 0: ``classes_[1]``), else (n, K).

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, p)
            As in `fit`.
        """
        scores = self._scores(X)
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: object) -> NumPyArray:
        """Return the most probable label of each sample, of shape (n,).

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, p)
            As in `fit`.
        """
        scores = self._scores(X)
        best = scores[:, 0] > 0 if len(self.classes_) == 2 else scores.argmax(axis=1)
        labels: NumPyArray = self.classes_[best.astype(np.intp)]
        return labels

    def predict_proba(self, X: object) -> NumPyArray:
        """Return the probability of each class, of shape (n, K).

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, p)
            As in `fit`.
        """
        scores = self._scores(X)
        if len(self.classes_) > 2:
            return np.asarray(softmax(scores, axis=1))
        return np.asarray(expit(np.hstack([-scores, scores])))

    def predict_log_proba(self, X: object) -> NumPyArray:
        """Return the logarithms of the probabilities, (n, K); finite where a probability is 0.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, p)
            As in `fit`.
        """
        scores = self._scores(X)
        if len(self.classes_) > 2:
            return np.asarray(log_softmax(scores, axis=1))
        return np.asarray(log_expit(np.hstack([-scores, scores])))

    def _warning(self, solution: Solution) -> str:
        if solution.reason is not StopReason.UNBOUNDED:
            return super()._warning(solution)
        norm = float(np.linalg.norm(solution.coef))
        return (
            f"{type(self).__name__} found no finite optimum with C={self.C:g}: the classes can be "
            "separated, and nothing is penalised; the loss falls for ever as the coefficients "
            f"grow, and the fit stopped at ||coef_|| = {norm:.3g} with an objective of "
            f"{solution.objective:.6g}: give a smaller C, such as 1e4; more snapshots do not help"
        )


class SVRGRegressor(RegressorMixin, LinearEstimator):  # type: ignore[misc]
    """Linear regression with L2 and L1 penalty, with a squared, Huber or Poisson loss.

    It minimises, over coefficients w and intercept b, and for Huber the scale sigma, the weighted
    mean of the losses plus ``alpha (1 - l1_ratio) / 2 ||w||^2 + alpha l1_ratio ||w||_1``:

    ============ ============================== ================================================
    loss         of a sample, r = y - (xw + b)  scikit-learn's estimator, S the sum of weights
    ============ ============================== ================================================
    'squared'    r^2 / 2                        ``Ridge(alpha=alpha * S)``,
                                                ``ElasticNet(alpha, l1_ratio=l1_ratio)``
    'huber'      sigma/2 + sigma h(r / sigma)   ``HuberRegressor(epsilon, alpha=alpha * S)``
    'poisson'    exp(xw + b) - y (xw + b)       ``PoissonRegressor(alpha=alpha)``
    ============ ============================== ================================================

    h(z) is z^2/2 up to abs(z) = epsilon, and goes on as a straight line. The features need no
    scaling, and the intercept is not penalised.

    Parameters
    ----------
    loss : {'squared', 'huber', 'poisson'}
        Huber's for targets with outliers, Poisson's for counts (and rates, with the exposure as
        `sample_weight`).
    alpha : float, default 1.0
        The strength of the penalty on the *mean* loss, at least 0. As in PoissonRegressor it means
        the same for any number of rows; in Ridge and HuberRegressor it is S times as large.
    l1_ratio : float, default 0.0
        As in :class:`SVRGClassifier`; for Huber's loss 0.
    epsilon : float, default 1.35
        For Huber's loss: residuals beyond epsilon sigma count as outliers. Above 1.
    fit_intercept, tol, max_iter, max_time, metric, warm_start, random_state, verbose
        As in :class:`SVRGClassifier`.

    Attributes
    ----------
    coef_ : numpy.ndarray of shape (p,), float64
        The coefficients.
    intercept_ : float
        0.0 without an intercept.
    scale_ : float
        For Huber's loss, sigma; 0 for a perfect fit. Outliers are the samples with
        ``abs(y - model.predict(X)) > epsilon * scale_``.
    objective_, gap_, decrement_, history_, n_iter_, solver_, why_, stop_reason_
        As in :class:`SVRGClassifier`.
    n_features_in_, feature_names_in_
        As in :class:`SVRGClassifier`.

    See Also
    --------
    SVRGClassifier
    """

    def __init__(
        self,
        loss: str = "squared",
        *,
        alpha: float = 1.0,
        l1_ratio: float = 0.0,
        epsilon: float = 1.35,
        fit_intercept: bool = True,
        tol: float = 1e-6,
        max_iter: int = 100,
        max_time: float | None = None,
        metric: str = "auto",
        warm_start: bool = False,
        random_state: int | RandomState | None = None,
        verbose: Verbose = 0,
    ) -> None:
        self.loss = loss
        self.alpha = alpha
        self.l1_ratio = l1_ratio
        self.epsilon = epsilon
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.max_iter = max_iter
        self.max_time = max_time
        self.metric = metric
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: object, y: object, sample_weight: object = None) -> SVRGRegressor:
        """Find the optimum.

        Parameters
        ----------
        X : array-like, sparse matrix or Chunks of shape (n, p)
            As in :meth:`SVRGClassifier.fit`.
        y : array-like of shape (n,)
            Finite numbers; for Poisson's loss not negative, and not 0 everywhere.
        sample_weight : array-like of shape (n,), optional
            Not negative. 2 is as good as a row that stands there twice, 0 leaves the row out.

        Returns
        -------
        SVRGRegressor
            Itself.

        Raises
        ------
        TypeError, ValueError
            If an argument cannot be; if X or y has NaN or infinity; if y is negative, or 0
            everywhere, for Poisson's loss; if a weight is negative or all are 0.

        Warns
        -----
        sklearn.exceptions.ConvergenceWarning
            As :meth:`SVRGClassifier.fit`.
        """
        if self.loss not in _REGRESSION_LOSSES:
            raise ValueError(
                f"loss must be one of {', '.join(map(repr, _REGRESSION_LOSSES))}, got "
                f"{self.loss!r}: for classes, take SVRGClassifier"
            )
        alpha = check_finite("alpha", self.alpha, "the strength of the penalty; 0 for none", 0)
        l1_ratio = self._checked_l1_ratio()
        if self.loss == "huber" and l1_ratio > 0:
            raise ValueError(
                f"l1_ratio is {l1_ratio:g}, and loss='huber' has the penalty on squares only, "
                "since its scale is found in an outer iteration that needs smooth optima: set "
                "l1_ratio=0, or take loss='squared'"
            )
        features = check_features(self, X, reset=True)
        y, sample_weight = joined("y", y, X), joined("sample_weight", sample_weight, X)
        weight = check_weight(sample_weight, features)
        problem = Problem(
            features=features,
            target=check_target(type(self).__name__, y, features, weight, loss=self.loss),
            loss=Poisson() if self.loss == "poisson" else Squared(),
            l2=alpha * (1 - l1_ratio),
            sample_weight=weight,
            fit_intercept=bool(self.fit_intercept),
            l1=alpha * l1_ratio,
        )
        start = self._start((features.shape[1],))
        if self.loss == "huber":
            solution = self._fit_with_scale(problem, start)
        else:
            solution = self._run(lambda settings: solve(problem, settings, start))
            self._forget("scale_")
        self.coef_ = np.array(solution.coef[:, 0], dtype=np.float64)
        self.intercept_ = float(solution.intercept[0])
        return self

    def predict(self, X: object) -> NumPyArray:
        """Return the prediction for each sample, (n,) and float64; for Poisson's loss the mean.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, p)
            As in `fit`.
        """
        scores = self._scores(X)[:, 0]
        return np.exp(scores) if self.loss == "poisson" else scores

    def score(self, X: object, y: object, sample_weight: object = None) -> float:
        """Return R^2; for Poisson's loss D^2, the share of the deviance that is explained.

        As Ridge, HuberRegressor and PoissonRegressor do.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, p)
            As in `fit`.
        y : array-like of shape (n,)
            The true values.
        sample_weight : array-like of shape (n,), optional
            Their weights.
        """
        y, sample_weight = joined("y", y, X), joined("sample_weight", sample_weight, X)
        if self.loss != "poisson":
            return float(super().score(X, y, sample_weight))
        scores = self._scores(X)
        weight = check_weight(sample_weight, scores)
        target = check_target(type(self).__name__, y, scores, weight, loss=self.loss)
        return explained_deviance(target, scores[:, 0], weight)

    def _fit_with_scale(
        self, problem: Problem, start: tuple[NumPyArray, NumPyArray] | None
    ) -> Solution:
        epsilon = check_finite(
            "epsilon",
            self.epsilon,
            "outliers are beyond epsilon times the scale, which would be 0 for 1",
            1,
            above=True,
        )

        def with_scale(settings: Settings) -> Solution:
            solution, self.scale_ = solve_with_scale(problem, epsilon, settings, start)
            return solution

        return self._run(with_scale)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = self.loss == "poisson"
        return tags

    def _more_tags(self) -> dict[str, bool]:
        """Return the same for scikit-learn 1.5."""
        return {"requires_positive_y": self.loss == "poisson"}
