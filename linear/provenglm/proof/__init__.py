"""Bounds of the distance from a point to the optimum, and checks that an optimum exists."""
