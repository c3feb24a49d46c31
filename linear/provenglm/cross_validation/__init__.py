"""Paths of penalties over folds, and what is chosen by them."""
