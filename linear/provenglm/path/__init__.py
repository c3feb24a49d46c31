"""Fits for many penalties and folds together."""
