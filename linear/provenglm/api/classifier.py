"""GLMClassifier: logistic and softmax regression."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.random import RandomState
from scipy.sparse import csr_matrix
from scipy.special import expit, log_expit, log_softmax, softmax
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from provenglm.api.base import all_or_nothing, lazy_for_dask
from provenglm.api.far_data import Checked, far_data
from provenglm.api.far_score import far_accuracy
from provenglm.api.inference import DataOfFit, InferenceMixin
from provenglm.api.keywords import FOR_CLASSIFIER
from provenglm.api.validation import (
    check_features,
    check_labels,
    check_offset,
    check_scored_labels,
    check_weight,
    classes_with_weight,
    with_class_weight,
)
from provenglm.arguments import check_number, explains_unknown
from provenglm.model.losses import Logistic, Loss, Softmax
from provenglm.model.problem import Problem
from provenglm.model.solution import Solution
from provenglm.rows.dask_rows import DaskRows, is_dask
from provenglm.rows.disk_checks import joined
from provenglm.rows.far_parts import Source
from provenglm.rows.mpi import Distributed
from provenglm.solve import solve
from provenglm.types import NumPyArray, Verbose

__all__ = ["GLMClassifier"]


class GLMClassifier(ClassifierMixin, InferenceMixin):  # type: ignore[misc]
    """Logistic and softmax regression with a proven distance to the optimum.

    The objective is that of :class:`sklearn.linear_model.LogisticRegression`, which this class can
    replace in pipelines and searches. There is no solver and no step size to choose. Features need
    no scaling: they are standardised internally, but the penalty is on the coefficients of the
    features as they are given. The intercept is not penalised.

    Parameters
    ----------
    C : float, default 1.0
        Inverse of the strength of the penalty; must be positive. ``math.inf`` means no penalty:
        ``coef_`` is then the optimum of least norm, for up to 2e10 products of numbers of X
        (n p min(n, p)); beyond, where columns are sums of others, it is any optimum.
    l1_ratio : float, default 0.0
        Share of the L1 penalty, from 0 (L2 penalty only) to 1 (L1 penalty only). If it is above 0,
        some coefficients are exactly 0.
    fit_intercept : bool, default True
        Whether to fit an intercept.
    class_weight : dict, 'balanced' or None
        Weights per label, which multiply `sample_weight`. 'balanced' gives each class the same
        total weight.
    tol : float, default 1e-6
        The fit ends when the objective is this close to the optimum, relative to the improvement
        over the best constant prediction. ``gap_`` proves this. If a proof costs too much, the
        estimate ``decrement_`` has to be 20 times smaller instead.
    max_iter : int, default 1000
        Maximum number of snapshots. A snapshot is a full pass over the data; the step to the next
        one costs about as much again.
    max_time : float, optional
        Maximum time in seconds, including checks and proof. The fit ends at the first snapshot
        after it.
    warm_start : bool, default False
        Whether `fit` starts at the coefficients of the previous fit.
    random_state : int, RandomState or None
        Seed for the rows that are sampled. It changes the steps to the optimum, so coefficients
        differ by as much as `tol` allows. None means a fixed seed: the same call returns identical
        results.
    verbose : 'auto', 0, 1 or 2
        0 is silent. 2 logs one line per snapshot, which is printed if the program has not
        configured logging. 1 also shows a progress bar. 'auto' is 1 in a terminal or a notebook,
        and 2 elsewhere.
    metric : str, default 'auto'
        Has no effect: the solver is chosen from the data, and ``why_`` explains the choice.

        .. deprecated:: 0.9
           `metric` will be removed in version 0.10.

    Attributes
    ----------
    classes_ : numpy.ndarray of shape (K,)
        The class labels. A class is left out if all its samples have weight 0.
    coef_ : numpy.ndarray of shape (1, p) for two classes, else (K, p), float64
        The coefficients. For two classes they are those of ``classes_[1]``.
    intercept_ : numpy.ndarray of shape (1,) or (K,), float64
        The intercepts. For three or more classes their mean is 0, because adding a constant to all
        of them changes no probability.
    objective_ : float
        The weighted mean loss plus ``((1 - l1_ratio) / 2 ||coef_||^2 + l1_ratio ||coef_||_1) / (C
        S)``, where S is the sum of the weights. Multiplied by C S it is the objective of
        LogisticRegression.
    gap_ : float
        Proven bound: ``objective_`` is at most this far above the optimum, up to the rounding of
        float64 (about 1e-14 of it). Both belong to ``coef_`` and ``intercept_`` as they are stored.
        If X has a dtype that float32 holds exactly, ``objective_`` may be computed in float32: the
        bound then holds for the exact objective of ``coef_``, of which ``objective_`` has about 6
        digits.
        See ``docs/linear/certificate.md``. If no better bound can be proven, the optimum is only
        known to be at least the infimum of the loss. Without a penalty, if columns are sums of
        others up to rounding, it is a bound for coefficients of up to 10,000 times the size of
        those found.
    decrement_ : float
        Estimate of the same distance. It is closer to the truth if the penalty is tiny.
    history_ : list of dict
        One dict per snapshot: iteration, passes, seconds, objective, gap, decrement. Seconds count
        from the call of `fit`; those of the last dict include the proof.
        ``pandas.DataFrame(model.history_)`` makes it a table.
    n_iter_ : int
        Number of snapshots (for Newton's method, of iterations).
    solver_, why_, stop_reason_ : str
        The method that was used; why it was chosen, with the numbers; and why the fit ended. A
        proof and an estimate have different sentences.
    n_features_in_ : int
        Number of features p.
    feature_names_in_ : numpy.ndarray of shape (p,)
        Names of the columns, if X has names.

    See Also
    --------
    GLMRegressor

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from provenglm import GLMClassifier
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = GLMClassifier(C=1.0).fit(X, y)
    >>> model.gap_ < 1e-6
    True
    """

    classes_: NumPyArray

    @explains_unknown(FOR_CLASSIFIER)
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
        warm_start: bool = False,
        random_state: int | RandomState | None = None,
        verbose: Verbose = 0,
        metric: str = "auto",
    ) -> None:
        self.C = C
        self.l1_ratio = l1_ratio
        self.fit_intercept = fit_intercept
        self.class_weight = class_weight
        self.tol = tol
        self.max_iter = max_iter
        self.max_time = max_time
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose
        self.metric = metric

    @all_or_nothing
    def fit(
        self, X: object, y: object, sample_weight: object = None, offset: object = None
    ) -> GLMClassifier:
        """Fit the model.

        Parameters
        ----------
        X : array-like, sparse matrix, Chunks, Distributed or Dask collection of shape (n, p)
            Numbers or booleans of any dtype and memory order. `X` is not changed, and not copied as
            a whole if it has more than eight million numbers. Of SciPy's sparse matrices and
            arrays, CSR of float32 or float64 is used as it is. Other formats, integers, and CSR
            with unsorted or duplicate entries (which are summed) are copied once. Memory maps and
            :class:`Chunks` are read in blocks, several times. Rows of other
            processes are given by :class:`Distributed`, or by a dask.array or dask.dataframe.
        y : array-like of shape (n,)
            Labels: integers, booleans or strings. For Chunks, `y` and `sample_weight` may be lists
            of arrays, one per chunk.
        sample_weight : array-like of shape (n,), optional
            Non-negative weights. Weight 2 is the same as repeating the row, weight 0 the same as
            leaving it out.
        offset : array-like of shape (n,), for three or more classes (n, K), optional
            Numbers added to the scores, such as the scores of another model. The columns are in the
            order of ``classes_``. For Chunks it may be a list of arrays.

        Returns
        -------
        GLMClassifier
            The fitted estimator.

        Raises
        ------
        TypeError, ValueError
            If an argument is invalid, if X or y contains NaN or infinity, if there are fewer than
            two classes, or if a weight is negative or all weights are 0.

        Warns
        -----
        sklearn.exceptions.ConvergenceWarning
            If `tol` is not reached. The warning says how far the optimum may be, and why. It is
            also raised if only an estimate reaches `tol` and ``gap_`` is more than 100 times what
            `tol` asks. Ctrl-C also warns, and the best point is kept.
        """
        if isinstance(X, Distributed):
            fitted: GLMClassifier = X.fit(self, y, sample_weight, offset)
            return fitted
        if is_dask(X):
            X = DaskRows(X, y, sample_weight, offset)
        began = time.perf_counter()
        strength = check_number(
            "C", self.C, "inverse strength of the penalty; inf for no penalty", 0, above=True
        )
        l1_ratio = self._checked_l1_ratio()
        if isinstance(X, Source):
            data = far_data(self, X, None, self.class_weight)
        else:
            data = self._checked(X, y, sample_weight, offset)
        classes, count = data.classes, len(data.classes)
        penalty = 1 / strength / data.total
        if math.isinf(penalty):
            raise ValueError(f"C is {strength:g}, and 1 / C overflows float64: give a larger C")
        loss: Loss = Logistic() if count == 2 else Softmax(count)
        problem = Problem(
            features=data.features,
            target=data.target,
            loss=loss,
            l2=penalty * (1 - l1_ratio),
            sample_weight=data.weight,
            fit_intercept=bool(self.fit_intercept),
            l1=penalty * l1_ratio,
            offset=data.offset,
        )
        start = self._start((1 if count == 2 else count, data.features.shape[1]))
        if start is not None and not np.array_equal(self.classes_, classes):
            raise ValueError(
                f"warm_start=True, and the previous fit had the classes {self.classes_}, but this "
                f"fit has {classes}: set warm_start=False"
            )
        solution = self._run(lambda settings: solve(problem, settings, start), began)
        self.classes_ = classes
        self._keep(solution.coef, solution.intercept)
        self._total = data.total
        self._keep_offset(data.offset)
        return self

    def _checked(self, X: object, y: object, sample_weight: object, offset: object) -> Checked:
        """Return the data of a fit in this process."""
        name = type(self).__name__
        features = check_features(self, X, reset=True)
        y, sample_weight = joined("y", y, X), joined("sample_weight", sample_weight, X)
        labels = check_labels(name, y, features)
        weight = with_class_weight(labels, check_weight(sample_weight, features), self.class_weight)
        classes, codes = classes_with_weight(name, labels, weight)
        total = float(len(codes)) if weight is None else float(weight.sum())
        outputs = 1 if len(classes) == 2 else len(classes)
        given = check_offset(joined("offset", offset, X), len(codes), outputs)
        return Checked(features, codes, weight, given, total, classes)

    def score(
        self, X: object, y: object, sample_weight: object = None, offset: object = None
    ) -> float:
        """Return the accuracy on the given data. The parameters are those of `fit`."""
        if is_dask(X):
            return far_accuracy(self, DaskRows(X, y, sample_weight, offset))
        from sklearn.metrics import accuracy_score  # this import takes 60 ms

        y, sample_weight = joined("y", y, X), joined("sample_weight", sample_weight, X)
        predicted = self._labels(self._with_offset(X, offset, "score"))
        true = check_scored_labels(type(self).__name__, y, len(predicted))
        weight = check_weight(sample_weight, predicted)
        return float(accuracy_score(true, predicted, sample_weight=weight))

    @lazy_for_dask
    def decision_function(self, X: object, offset: object = None) -> NumPyArray:
        """Return the scores, of shape (n,) for two classes, else (n, K), in float64.

        For two classes, a score above 0 predicts ``classes_[1]``.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, p)
            As in `fit`.
        offset : array-like of shape (n,) or (n, K), optional
            As in `fit`. If it is left out, it is 0.
        """
        scores = self._with_offset(X, offset, "decision_function")
        return scores[:, 0] if len(self.classes_) == 2 else scores

    @lazy_for_dask
    def predict(self, X: object, offset: object = None) -> NumPyArray:
        """Return the most probable label of each sample, of shape (n,).

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, p)
            As in `fit`.
        offset : array-like of shape (n,) or (n, K), optional
            As in `fit`. If it is left out, it is 0.
        """
        return self._labels(self._with_offset(X, offset, "predict"))

    @lazy_for_dask
    def predict_proba(self, X: object, offset: object = None) -> NumPyArray:
        """Return the probability of each class, of shape (n, K).

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, p)
            As in `fit`.
        offset : array-like of shape (n,) or (n, K), optional
            As in `fit`. If it is left out, it is 0.
        """
        scores = self._with_offset(X, offset, "predict_proba")
        if len(self.classes_) > 2:
            return np.asarray(softmax(scores, axis=1))
        table = np.empty((len(scores), 2))
        expit(scores[:, 0], out=table[:, 1])
        expit(-scores[:, 0], out=table[:, 0])
        return table

    @lazy_for_dask
    def predict_log_proba(self, X: object, offset: object = None) -> NumPyArray:
        """Return the logarithm of the probability of each class, of shape (n, K).

        It is finite even if the probability underflows to 0.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, p)
            As in `fit`.
        offset : array-like of shape (n,) or (n, K), optional
            As in `fit`. If it is left out, it is 0.
        """
        scores = self._with_offset(X, offset, "predict_log_proba")
        if len(self.classes_) > 2:
            return np.asarray(log_softmax(scores, axis=1))
        return np.asarray(log_expit(np.hstack([-scores, scores])))

    def sparsify(self) -> GLMClassifier:
        """Convert ``coef_`` to a CSR matrix, which saves memory if most coefficients are 0.

        Predictions stay the same. The next `fit` makes ``coef_`` an array again.

        Returns
        -------
        GLMClassifier
            The fitted estimator.
        """
        check_is_fitted(self)
        self.coef_ = csr_matrix(self.coef_)
        return self

    def densify(self) -> GLMClassifier:
        """Convert ``coef_`` back to an array, which is the format after `fit`.

        Returns
        -------
        GLMClassifier
            The fitted estimator.
        """
        check_is_fitted(self)
        self.coef_ = self._dense_coef()
        return self

    def _data_of_fit(
        self, X: object, y: object, sample_weight: object, offset: object
    ) -> DataOfFit:
        self._check_offset_given(offset)
        features = self._rows_to_score(X)
        scores = self._with_offset(X, offset, "covariance", features)
        if scores.shape[1] > 1:
            raise ValueError(
                f"there are {len(self.classes_)} classes, and standard errors are for two: fit one "
                "class against the others"
            )
        y, sample_weight = joined("y", y, X), joined("sample_weight", sample_weight, X)
        labels = check_labels(type(self).__name__, y, features)
        weight = with_class_weight(labels, check_weight(sample_weight, features), self.class_weight)
        C, l1_ratio = self._penalty()
        return DataOfFit(
            features,
            Logistic(),
            scores[:, 0],
            (labels.classes[labels.codes] == self.classes_[1]).astype(np.intp),
            np.ones(len(scores)) if weight is None else weight,
            check_offset(joined("offset", offset, X), len(scores)),
            1 / C,
            l1_ratio,
        )

    def _labels(self, scores: NumPyArray) -> NumPyArray:
        """Return the most probable labels, (n,)."""
        best = scores[:, 0] > 0 if len(self.classes_) == 2 else scores.argmax(axis=1)
        labels: NumPyArray = self.classes_[best.astype(np.intp)]
        return labels

    def _keep(self, coef: NumPyArray, intercept: NumPyArray) -> None:
        self.coef_ = np.ascontiguousarray(coef.T)
        self.intercept_ = np.array(intercept, dtype=np.float64)

    def _equivalent(self) -> Any:
        from provenglm.api.to_sklearn import classifier  # sklearn.linear_model takes 60 ms

        return classifier(self)

    def _penalty(self) -> tuple[float, float]:
        """Return C and l1_ratio."""
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
