"""Arguments of other libraries, and their names here."""

_LEAVE_OUT = "leave it out, the solver is chosen from the data"
_OFFSET = "give offset=numpy.log(exposure) to fit"

_ANYWHERE = {
    **dict.fromkeys(("solver", "dual", "selection", "algorithm", "optimizer"), _LEAVE_OUT),
    **dict.fromkeys(("learning_rate", "eta0", "step_size", "precompute"), _LEAVE_OUT),
    "copy_X": "leave it out, X is never changed",
    "n_jobs": "leave it out, a fit uses all cores (threadpoolctl.threadpool_limits limits them)",
    "positive": "coefficients cannot be bounded here, use sklearn.linear_model",
    "normalize": "leave it out, features are standardised internally",
    "multi_class": "leave it out, several classes are fitted by softmax",
    "intercept_scaling": "leave it out, the intercept is not penalised",
    "exposure": _OFFSET,
    "sample_weight": "give sample_weight to fit",
    "weights": "give sample_weight to fit",
    "offset": "give offset to fit",
    "n_iter": "max_iter",
    "max_epochs": "max_iter",
    "l1_wt": "l1_ratio",
    "rho": "l1_ratio",
    "seed": "random_state",
    "intercept": "fit_intercept",
}

FOR_CLASSIFIER = {
    **_ANYWHERE,
    "penalty": "'l1' is l1_ratio=1, 'l2' is l1_ratio=0, 'elasticnet' a number between, and None is "
    "C=math.inf",
    "alpha": "give C, which is 1 / (alpha * n) for n rows",
    "alphas": "give Cs, each of which is 1 / (alpha * n) for n rows",
    "lambda_": "give C, which is 1 / (lambda * n) for n rows",
    "loss": "leave it out, the loss is logistic or softmax",
    "family": "leave it out, the loss is logistic or softmax",
}
"""For GLMClassifier and GLMClassifierCV."""

FOR_REGRESSOR = {
    **_ANYWHERE,
    "penalty": "'l1' is l1_ratio=1, 'l2' is l1_ratio=0, 'elasticnet' a number between, and None is "
    "alpha=0",
    "C": "give alpha, which is 1 / (C * n) for n rows",
    "Cs": "give alphas, each of which is 1 / (C * n) for n rows",
    "lambda_": "alpha",
    "lambdas": "alphas",
    "n_alphas": "alphas",
    "family": "loss",
    "objective": "loss",
    "link": "leave it out, the loss has its link: the identity for 'squared' and 'huber', else the "
    "logarithm",
    "class_weight": "give sample_weight to fit",
}
"""For GLMRegressor and GLMRegressorCV."""
