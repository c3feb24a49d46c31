"""Figures that are equal, to rounding."""

import math


def assert_close(ours, theirs, tolerance=1e-10):
    """Compare plain data: numbers to `tolerance`, all else exactly."""
    if isinstance(ours, dict):
        assert list(ours) == list(theirs)
        ours, theirs = list(ours.values()), list(theirs.values())
    if isinstance(ours, list):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_close(one, other, tolerance)
    elif isinstance(ours, float):
        both_nan = math.isnan(ours) and math.isnan(theirs)
        assert both_nan or math.isclose(ours, theirs, rel_tol=tolerance, abs_tol=tolerance)
    else:
        assert ours == theirs
