"""The estimators under scikit-learn's names, with scikit-learn's arguments and attributes."""
