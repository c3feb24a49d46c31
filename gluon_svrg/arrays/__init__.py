"""Many arrays in one call."""
