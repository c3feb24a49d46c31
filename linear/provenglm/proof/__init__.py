"""Bounds of the distance from a point to the optimum, and whether there is one."""
