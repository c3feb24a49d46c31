"""Elastic net: penalties with corners."""
