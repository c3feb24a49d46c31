"""RoutedScoring: metadata routing and `score` of the estimators with cross-validation."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable, Mapping
from copy import copy
from typing import Any, ClassVar

import numpy as np
from sklearn.base import is_classifier
from sklearn.metrics import get_scorer, make_scorer
from sklearn.utils import metadata_routing
from sklearn.utils.metadata_routing import (
    MetadataRouter,
    MethodMapping,
    _raise_for_params,
    _routing_enabled,
    process_routing,
)
from sklearn.utils.validation import _check_method_params, _num_samples

from provenglm.api.base import LinearEstimator
from provenglm.api.validation import check_numbers, check_scored_labels, check_weight
from provenglm.rows.disk_checks import joined
from provenglm.types import NumPyArray


def check_params(params: Mapping[str, object], estimator: object, method: str) -> None:
    """Raise an error if there are parameters for others, and metadata routing is off."""
    _raise_for_params(params, estimator, method)


def params_of(rows: NumPyArray, params: Mapping[str, Any], n: int) -> Mapping[str, Any]:
    """Return parameters for some of n rows."""
    return dict(_check_method_params(np.empty((n, 0)), params, indices=rows))


def is_of_sklearn(scorer: Any) -> bool:
    """Whether a scorer is made by scikit-learn: it only hands the rows to the estimator."""
    return hasattr(scorer, "_score_func")


def with_classes(scorer: Any, classes: NumPyArray) -> Any:
    """Return the scorer with `labels` set to the classes, if its function has this parameter.

    LogisticRegressionCV does the same, because a test set may lack some classes.
    """
    known = inspect.signature(scorer._score_func).parameters if is_of_sklearn(scorer) else ()
    if "labels" not in known:
        return scorer
    arguments: dict[str, Any] = {"labels": classes, **getattr(scorer, "_kwargs", {})}
    if len(classes) == 2 and "pos_label" in known:
        arguments = {"pos_label": classes[-1], **arguments}
    return make_scorer(
        scorer._score_func,
        greater_is_better=scorer._sign == 1,
        response_method=scorer._response_method,
        **arguments,
    )


class RoutedScoring(LinearEstimator):
    """Mixin for estimators with `cv` and `scoring` that supports metadata routing."""

    cv: object
    scoring: str | Callable[..., float] | None

    @abstractmethod
    def _own_scorer(self) -> Any:
        """Return the scorer for ``scoring=None``."""

    # `score` passes sample_weight on to the scorer.
    __metadata_request__score: ClassVar = {"sample_weight": metadata_routing.UNUSED}

    def _routed(
        self, weight: NumPyArray | None, params: Mapping[str, object]
    ) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Return the parameters of the splitter and those of the scorer."""
        if _routing_enabled():
            routed = process_routing(self, "fit", sample_weight=weight, **params)
            return routed.splitter.split, routed.scorer.score
        return {}, {} if weight is None else {"sample_weight": weight}

    def score(
        self,
        X: object,
        y: object,
        sample_weight: object = None,
        offset: object = None,
        **score_params: object,
    ) -> float:
        """Return the score on the given data, as defined by `scoring`.

        Parameters
        ----------
        X : array-like of shape (n, p)
            As in `fit`.
        y : array-like of shape (n,)
            True labels or values.
        sample_weight : array-like of shape (n,), optional
            Sample weights.
        offset : array-like of shape (n,) or (n, K), optional
            As in `fit`. The scorer gets predictions with the offset.
        **score_params : dict
            Parameters of the scorer. They need metadata routing.
        """
        _raise_for_params(score_params, self, "score")
        name, n = type(self).__name__, _num_samples(X)
        y, sample_weight = joined("y", y, X), joined("sample_weight", sample_weight, X)
        check = check_scored_labels if is_classifier(self) else check_numbers
        y = check(name, y, n)
        if sample_weight is not None:
            score_params["sample_weight"] = check_weight(sample_weight, np.empty((n, 0)))
        if _routing_enabled():
            own = process_routing(self, "score", **score_params).scorer.score
        else:
            own = score_params
        model = self
        if offset is not None or self._without_offset is not None:
            # The scorer passes X to the estimator, which then knows the scores with the offset.
            model = copy(self)
            model._known = X, self._with_offset(X, offset, "score")
        return float(self._scorer()(model, X, y, **own))

    def get_metadata_routing(self) -> MetadataRouter:
        """Return the metadata routing of this estimator, for the splitter and the scorer.

        Returns
        -------
        sklearn.utils.metadata_routing.MetadataRouter
            The router.
        """
        to_scorer = MethodMapping().add(caller="score", callee="score")
        to_scorer = to_scorer.add(caller="fit", callee="score")
        return (
            MetadataRouter(owner=type(self).__name__)
            .add_self_request(self)
            .add(
                splitter=self.cv,
                method_mapping=MethodMapping().add(caller="fit", callee="split"),
            )
            .add(scorer=self._scorer(), method_mapping=to_scorer)
        )

    def _scorer(self) -> Any:
        if self.scoring is not None:
            return get_scorer(self.scoring)
        scorer = self._own_scorer()
        # The default score uses weights without a request, as the fits do.
        return scorer.set_score_request(sample_weight=True) if _routing_enabled() else scorer
