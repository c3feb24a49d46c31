"""History: the figures of each epoch."""

from __future__ import annotations

from typing import Any


class History(list[dict[str, Any]]):
    """A list of rows, one dict an epoch, by the names of the figures."""
