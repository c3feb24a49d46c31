"""Ways from a point to a lower one."""
