"""The estimators: linear models solved to a certificate, with scikit-learn's interface."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.random import RandomState
from scipy.sparse import csr_matrix
from scipy.special import expit, log_expit, log_softmax, softmax
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from provenglm.api.base import LinearEstimator, Start, all_or_nothing
from provenglm.api.validation import (
    check_exposure,
    check_features,
    check_labels,
    check_numbers,
    check_offset,
    check_scored_labels,
    check_target,
    check_weight,
    classes_with_weight,
    with_class_weight,
)
from provenglm.arguments import check_finite, check_number
from provenglm.huber_scale import solve_with_scale
from provenglm.model.losses import (
    Huber,
    Logistic,
    Loss,
    Poisson,
    Softmax,
    Squared,
    explained_deviance,
)
from provenglm.model.problem import Problem
from provenglm.model.solution import Settings, Solution
from provenglm.model.tweedie import Gamma, Tweedie
from provenglm.rows.large import joined
from provenglm.solve import solve
from provenglm.types import NumPyArray, Verbose

__all__ = ["SVRGClassifier", "SVRGRegressor"]


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
    max_iter : int, default 1000
        The most snapshots. Each is a pass over all data; the steps to the next one cost about as
        much again.
    max_time : float, optional
        The most seconds, checks and proof included; the fit ends at the next snapshot.
    metric : str, default 'auto'
        How steps are measured. 'auto' chooses by the size of the problem and by what it measures,
        and tells it in ``why_``; 'hessian' is for comparisons. 'diagonal' and 'identity' are
        deprecated, and mean 'auto'.
    warm_start : bool, default False
        Whether `fit` begins at the coefficients of the last fit.
    random_state : int, RandomState or None
        Which samples are drawn. It changes the way to the optimum, so that coefficients differ by
        what `tol` allows. None is a seed of its own: the same call gives the same bits.
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
        ``objective_`` is proven to be at most this far above the optimum, up to the rounding of
        float64 (about 1e-14 of it). Both are those of ``coef_`` and ``intercept_`` as they are
        here. See ``docs/linear/certificate.md``. If nothing else can be proven, all that is known
        is that no loss is below its least value.
    decrement_ : float
        An estimate of the same distance, which is nearer the truth when the penalty is tiny.
    history_ : list of dict
        One for each snapshot: iteration, passes, seconds, objective, gap, decrement. Seconds count
        from the call of `fit`, and the last ones have the proof.
        ``pandas.DataFrame(model.history_)`` is a table of it.
    n_iter_ : int
        Snapshots (or Newton's iterations).
    solver_, why_, stop_reason_ : str
        Which way was taken; why, with the numbers; why it ended: a proof and an estimate have
        different sentences.
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
        max_iter: int = 1000,
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

    @all_or_nothing
    def fit(
        self, X: object, y: object, sample_weight: object = None, offset: object = None
    ) -> SVRGClassifier:
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
        offset : array-like of shape (n,), for three or more classes (n, K), optional
            Numbers that are added to the scores, such as those of another model. The columns are in
            the order of ``classes_``. Of Chunks it may be a list of arrays, as `y`.

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
            If `tol` is not reached: how far the optimum is, and why; also if only an estimate says
            that it is, and ``gap_`` is more than 100 times what `tol` asks. Ctrl-C warns as well,
            and the best point is kept.
        """
        began, name = time.perf_counter(), type(self).__name__
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
        total = float(len(codes)) if weight is None else float(weight.sum())
        penalty = 1 / strength / total
        if math.isinf(penalty):
            raise ValueError(f"C is {strength:g}, and 1 / C is beyond float64: give a greater C")
        loss: Loss = Logistic() if count == 2 else Softmax(count)
        given = check_offset(joined("offset", offset, X), len(codes), loss.outputs)
        problem = Problem(
            features=features,
            target=codes,
            loss=loss,
            l2=penalty * (1 - l1_ratio),
            sample_weight=weight,
            fit_intercept=bool(self.fit_intercept),
            l1=penalty * l1_ratio,
            offset=given,
        )
        start = self._start((1 if count == 2 else count, features.shape[1]))
        if start is not None and not np.array_equal(self.classes_, classes):
            raise ValueError(
                f"warm_start=True, and the last fit had the classes {self.classes_}, this one has "
                f"{classes}: set warm_start=False"
            )
        solution = self._run(lambda settings: solve(problem, settings, start), began)
        self.classes_ = classes
        self._keep(solution.coef, solution.intercept)
        self._total = total
        self._keep_offset(given)
        return self

    def score(
        self, X: object, y: object, sample_weight: object = None, offset: object = None
    ) -> float:
        """Return the accuracy, as other classifiers do; y, weights and offsets as in `fit`."""
        from sklearn.metrics import accuracy_score  # takes 60 ms, which a fit does not need

        y, sample_weight = joined("y", y, X), joined("sample_weight", sample_weight, X)
        predicted = self._labels(self._with_offset(X, offset, "score"))
        true = check_scored_labels(type(self).__name__, y, len(predicted))
        weight = check_weight(sample_weight, predicted)
        return float(accuracy_score(true, predicted, sample_weight=weight))

    def decision_function(self, X: object, offset: object = None) -> NumPyArray:
        """Return the scores, float64: (n,) for two classes (above 0: ``classes_[1]``), else (n, K).

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, p)
            As in `fit`.
        offset : array-like of shape (n,) or (n, K), optional
            As in `fit`; none is 0.
        """
        scores = self._with_offset(X, offset, "decision_function")
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: object, offset: object = None) -> NumPyArray:
        """Return the most probable label of each sample, of shape (n,).

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, p)
            As in `fit`.
        offset : array-like of shape (n,) or (n, K), optional
            As in `fit`; none is 0.
        """
        return self._labels(self._with_offset(X, offset, "predict"))

    def predict_proba(self, X: object, offset: object = None) -> NumPyArray:
        """Return the probability of each class, of shape (n, K).

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, p)
            As in `fit`.
        offset : array-like of shape (n,) or (n, K), optional
            As in `fit`; none is 0.
        """
        scores = self._with_offset(X, offset, "predict_proba")
        if len(self.classes_) > 2:
            return np.asarray(softmax(scores, axis=1))
        table = np.empty((len(scores), 2))
        expit(scores[:, 0], out=table[:, 1])
        expit(-scores[:, 0], out=table[:, 0])
        return table

    def predict_log_proba(self, X: object, offset: object = None) -> NumPyArray:
        """Return the logarithms of the probabilities, (n, K); finite where a probability is 0.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, p)
            As in `fit`.
        offset : array-like of shape (n,) or (n, K), optional
            As in `fit`; none is 0.
        """
        scores = self._with_offset(X, offset, "predict_log_proba")
        if len(self.classes_) > 2:
            return np.asarray(log_softmax(scores, axis=1))
        return np.asarray(log_expit(np.hstack([-scores, scores])))

    def sparsify(self) -> SVRGClassifier:
        """Make ``coef_`` a CSR matrix: less to keep where an L1 penalty has left few of them.

        Predictions stay the same, and `fit` makes an array of it again.

        Returns
        -------
        SVRGClassifier
            Itself.
        """
        check_is_fitted(self)
        self.coef_ = csr_matrix(self.coef_)
        return self

    def densify(self) -> SVRGClassifier:
        """Make ``coef_`` an array, which it is after `fit`.

        Returns
        -------
        SVRGClassifier
            Itself.
        """
        check_is_fitted(self)
        self.coef_ = self._dense_coef()
        return self

    def covariance(
        self, X: object, y: object, sample_weight: object = None, offset: object = None
    ) -> NumPyArray:
        """Return the covariance of the coefficients, for two classes, from the data of the fit.

        The inverse of the Fisher information H; with a penalty M^-1 H M^-1, with M the Hessian of
        the penalised objective: the variance of the penalised estimate, which does not know its
        bias.

        Parameters
        ----------
        X, y, sample_weight, offset
            As they were given to `fit`. A weight is how often a row was seen.

        Returns
        -------
        numpy.ndarray of shape (p + 1, p + 1), or (p, p) without an intercept
            That of the intercept is last.

        Raises
        ------
        ValueError
            If there are more than two classes, a penalty with an ``l1_ratio`` above 0, or no
            penalty and columns that depend on each other or classes that can be separated.
        """
        self._check_offset_given(offset)
        features = self._rows_to_score(X)
        scores = self._with_offset(X, offset, "covariance", features)
        if scores.shape[1] > 1:
            raise ValueError(
                f"there are {len(self.classes_)} classes, and covariance is that of two: fit one "
                "class against the others"
            )
        y, sample_weight = joined("y", y, X), joined("sample_weight", sample_weight, X)
        labels = check_labels(type(self).__name__, y, features)
        weight = with_class_weight(labels, check_weight(sample_weight, features), self.class_weight)
        target = np.asarray(labels.classes[labels.codes] == self.classes_[1], np.float64)
        C, l1_ratio = self._penalty()
        return self._covariance(features, Logistic(), scores[:, 0], target, weight, 1 / C, l1_ratio)

    def standard_errors(
        self, X: object, y: object, sample_weight: object = None, offset: object = None
    ) -> NumPyArray:
        """Return the square roots of the diagonal of `covariance`: the intercept's is last."""
        return np.asarray(np.sqrt(self.covariance(X, y, sample_weight, offset).diagonal()))

    def _labels(self, scores: NumPyArray) -> NumPyArray:
        """Return the most probable labels, (n,)."""
        best = scores[:, 0] > 0 if len(self.classes_) == 2 else scores.argmax(axis=1)
        labels: NumPyArray = self.classes_[best.astype(np.intp)]
        return labels

    def _keep(self, coef: NumPyArray, intercept: NumPyArray) -> None:
        self.coef_ = np.ascontiguousarray(coef.T)
        self.intercept_ = np.array(intercept, dtype=np.float64)

    def _penalty(self) -> tuple[float, float]:
        """Return C and the share of the L1 penalty."""
        return self.C, self.l1_ratio

    def _warning(self, solution: Solution) -> str:
        if not solution.reason.is_unbounded:
            return super()._warning(solution)
        norm = float(np.linalg.norm(solution.coef))
        return (
            f"{type(self).__name__} found no finite optimum with C={self.C:g}: "
            f"{solution.reason.why_unbounded}; the loss falls for ever as the coefficients "
            f"grow, and the fit stopped at ||coef_|| = {norm:.3g} with an objective of "
            f"{solution.objective:.6g}: give a smaller C, such as 1e4; more snapshots do not help"
        )


class SVRGRegressor(RegressorMixin, LinearEstimator):  # type: ignore[misc]
    """Linear regression; the default ``alpha=1`` is beside the *mean* loss: ``Ridge(alpha=n)``.

    With L2 and L1 penalty, and a squared, Huber, Poisson, gamma or Tweedie loss. It minimises, over
    coefficients w and intercept b, and for Huber the scale sigma, the weighted mean of the losses
    plus ``alpha (1 - l1_ratio) / 2 ||w||^2 + alpha l1_ratio ||w||_1``:

    ============ ============================== ================================================
    loss         of a sample, r = y - (xw + b)  scikit-learn's estimator, S the sum of weights
    ============ ============================== ================================================
    'squared'    r^2 / 2                        ``Ridge(alpha=alpha * S)``,
                                                ``ElasticNet(alpha, l1_ratio=l1_ratio)``
    'huber'      sigma/2 + sigma h(r / sigma)   ``HuberRegressor(epsilon, alpha=alpha * S)``
    'poisson'    exp(xw + b) - y (xw + b)       ``PoissonRegressor(alpha=alpha)``
    'gamma'      half the deviance              ``GammaRegressor(alpha=alpha)``
    'tweedie'    half the deviance              ``TweedieRegressor(power=power, alpha=alpha)``
    ============ ============================== ================================================

    h(z) is z^2/2 up to abs(z) = epsilon, and linear beyond. The last three predict
    exp(xw + b). The features need no scaling, and the intercept is not penalised.

    Parameters
    ----------
    loss : {'squared', 'huber', 'poisson', 'gamma', 'tweedie'}
        Huber's for targets with outliers, Poisson's for counts, gamma for amounts above 0, and
        Tweedie's for amounts of which many are 0. For an exposure see `offset` of `fit`.
    alpha : float, default 1.0
        The strength of the penalty beside the *mean* loss, at least 0. As in PoissonRegressor and
        ElasticNet it means the same for any number of rows. ``Ridge(alpha)`` and
        ``HuberRegressor(alpha=alpha)`` count the sum: this is their alpha divided by S. For
        ``Ridge()`` give ``alpha=1 / n``.
    l1_ratio : float, default 0.0
        As in :class:`SVRGClassifier`; for Huber's loss 0.
    epsilon : float, default 1.35
        For Huber's loss: residuals beyond epsilon sigma count as outliers. Above 1.
    power : float, default 1.5
        For Tweedie's loss: the variance is proportional to mean^power. From 1, which is
        loss='poisson', to 2, which is loss='gamma'. For 0 take loss='squared'.
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
        power: float = 1.5,
        fit_intercept: bool = True,
        tol: float = 1e-6,
        max_iter: int = 1000,
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
        self.power = power
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.max_iter = max_iter
        self.max_time = max_time
        self.metric = metric
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose

    @all_or_nothing
    def fit(
        self, X: object, y: object, sample_weight: object = None, offset: object = None
    ) -> SVRGRegressor:
        """Find the optimum.

        Parameters
        ----------
        X : array-like, sparse matrix or Chunks of shape (n, p)
            As in :meth:`SVRGClassifier.fit`.
        y : array-like of shape (n,)
            Finite numbers; for Poisson's and Tweedie's loss not negative, and not 0 everywhere;
            for the gamma loss above 0.
        sample_weight : array-like of shape (n,), optional
            Not negative. 2 is as good as a row that stands there twice, 0 leaves the row out.
        offset : array-like of shape (n,), optional
            Numbers that are added to xw + b: where the prediction is the exponential of that,
            ``numpy.log(exposure)``. Of Chunks it may be a list of arrays, as `y`.

        Returns
        -------
        SVRGRegressor
            Itself.

        Raises
        ------
        TypeError, ValueError
            If an argument cannot be; if X or y has NaN or infinity; if y is none of the loss; if a
            weight is negative or all are 0.

        Warns
        -----
        sklearn.exceptions.ConvergenceWarning
            As :meth:`SVRGClassifier.fit`.
        """
        began, loss = time.perf_counter(), self._loss()
        alpha = check_finite("alpha", self.alpha, "the strength of the penalty; 0 for none", 0)
        l1_ratio = self._checked_l1_ratio()
        check_smooth(loss, l1_ratio)
        features = check_features(self, X, reset=True)
        y, sample_weight = joined("y", y, X), joined("sample_weight", sample_weight, X)
        weight = check_weight(sample_weight, features)
        target = check_target(type(self).__name__, y, features, weight, loss)
        given = check_offset(joined("offset", offset, X), len(target))
        check_exposure(loss, given, weight, bool(self.fit_intercept))
        problem = Problem(
            features=features,
            target=target,
            loss=loss,
            l2=alpha * (1 - l1_ratio),
            sample_weight=weight,
            fit_intercept=bool(self.fit_intercept),
            l1=alpha * l1_ratio,
            offset=given,
        )
        start = self._start((features.shape[1],))
        self._forget("scale_")
        solver = self._solve_with_scale if loss.has_scale else solve
        solution = self._run(lambda settings: solver(problem, settings, start), began)
        self._keep(solution.coef, solution.intercept)
        self._total = float(len(problem.target)) if weight is None else float(weight.sum())
        self._keep_offset(given)
        return self

    def predict(self, X: object, offset: object = None) -> NumPyArray:
        """Return the prediction for each sample, (n,) and float64: the mean, as the loss has it.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, p)
            As in `fit`.
        offset : array-like of shape (n,), optional
            As in `fit`; none is 0, an exposure of 1.
        """
        return self._loss().prediction(self._with_offset(X, offset, "predict")[:, 0])

    def score(
        self, X: object, y: object, sample_weight: object = None, offset: object = None
    ) -> float:
        """Return R^2; where a logarithm is predicted D^2, the share of the deviance explained.

        As Ridge, HuberRegressor, PoissonRegressor, GammaRegressor and TweedieRegressor do: beside
        the mean of y, which has no offset.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, p)
            As in `fit`.
        y : array-like of shape (n,)
            The true values.
        sample_weight : array-like of shape (n,), optional
            Their weights.
        offset : array-like of shape (n,), optional
            As in `predict`.
        """
        from sklearn.metrics import r2_score  # as for classes

        y, sample_weight = joined("y", y, X), joined("sample_weight", sample_weight, X)
        loss, name = self._loss(), type(self).__name__
        scores = self._with_offset(X, offset, "score")[:, 0]
        weight = check_weight(sample_weight, scores)
        if not loss.has_logarithm:
            target = check_numbers(name, y, len(scores))
            return float(r2_score(target, loss.prediction(scores), sample_weight=weight))
        return explained_deviance(loss, check_target(name, y, scores, weight, loss), scores, weight)

    def covariance(
        self, X: object, y: object, sample_weight: object = None, offset: object = None
    ) -> NumPyArray:
        """Return the covariance of the coefficients, from the data of the fit.

        The inverse of the Fisher information H; with a penalty M^-1 H M^-1, with M the Hessian of
        the penalised objective: the variance of the penalised estimate, which does not know its
        bias. For the squared, gamma and Tweedie loss times the dispersion: Pearson's statistic
        divided by the sum of the weights less the degrees of freedom, as in statsmodels' GLM.

        Parameters
        ----------
        X, y, sample_weight, offset
            As they were given to `fit`. A weight is how often a row was seen.

        Returns
        -------
        numpy.ndarray of shape (p + 1, p + 1), or (p, p) without an intercept
            That of the intercept is last.

        Raises
        ------
        ValueError
            For Huber's loss, for a penalty with an ``l1_ratio`` above 0, and for columns that
            depend on each other where there is no penalty.
        """
        if self.loss == "huber":
            raise ValueError(
                "loss is 'huber', which is no likelihood with a Fisher information: resample the "
                "rows (sklearn.utils.resample) and take the deviation of the coefficients"
            )
        self._check_offset_given(offset)
        loss = self._loss()
        features = self._rows_to_score(X)
        scores = self._with_offset(X, offset, "covariance", features)[:, 0]
        y, sample_weight = joined("y", y, X), joined("sample_weight", sample_weight, X)
        weight = check_weight(sample_weight, features)
        target = check_target(type(self).__name__, y, features, weight, loss)
        total = len(target) if weight is None else float(weight.sum())
        alpha, l1_ratio = self._penalty()
        return self._covariance(features, loss, scores, target, weight, alpha * total, l1_ratio)

    def standard_errors(
        self, X: object, y: object, sample_weight: object = None, offset: object = None
    ) -> NumPyArray:
        """Return the square roots of the diagonal of `covariance`: the intercept's is last."""
        return np.asarray(np.sqrt(self.covariance(X, y, sample_weight, offset).diagonal()))

    def _loss(self) -> Loss:
        """Return the loss that the arguments name."""
        if self.loss not in _LOSSES:
            way = "for classes, take SVRGClassifier"
            if not isinstance(self.loss, str):
                way = f"the penalty is a keyword, alpha={self.loss!r}"
            raise ValueError(
                f"loss must be one of {', '.join(map(repr, _LOSSES))}, got {self.loss!r}: {way}"
            )
        return _LOSSES[self.loss].of(self)

    def _solve_with_scale(
        self, problem: Problem, settings: Settings, start: Start | None
    ) -> Solution:
        solution, self.scale_ = solve_with_scale(problem, settings, start)
        return solution

    def _keep(self, coef: NumPyArray, intercept: NumPyArray) -> None:
        self.coef_ = np.array(coef[:, 0], dtype=np.float64)
        self.intercept_ = float(intercept[0])

    def _penalty(self) -> tuple[float, float]:
        """Return alpha and the share of the L1 penalty."""
        return float(self.alpha), self.l1_ratio

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = self._has_logarithm()
        return tags

    def _more_tags(self) -> dict[str, bool]:
        """Return the same for scikit-learn 1.5."""
        return {"requires_positive_y": self._has_logarithm()}

    def _has_logarithm(self) -> bool:
        return self.loss in _LOSSES and _LOSSES[self.loss].has_logarithm


def check_smooth(loss: Loss, l1_ratio: float) -> None:
    """Raise a ValueError for an L1 penalty beside a loss whose scale is found as well."""
    if loss.has_scale and l1_ratio > 0:
        raise ValueError(
            f"l1_ratio is {l1_ratio:g}, and loss={loss.name!r} has the penalty on squares only, "
            "since its scale is found in an outer iteration that needs smooth optima: set "
            "l1_ratio=0, or take loss='squared'"
        )


_LOSSES: dict[str, type[Loss]] = {
    loss.name: loss for loss in (Squared, Huber, Poisson, Gamma, Tweedie)
}
