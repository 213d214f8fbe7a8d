"""The names of automatic compensation."""

from __future__ import annotations

RESTORE = "sql.restore"
"""The operation that `compensate: auto` stands for: restores the rows of the step from their images."""

AUTO = "auto"
"""The value of `compensate` that an author writes for it."""
