"""Methods that lead from a point to a lower one."""
