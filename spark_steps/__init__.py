"""Spark jobs as steps: staged, audited, published, taken back and reconciled.

Nothing here runs Spark inside the worker: jobs run in a runner process beside it, sinks are plain Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_steps.sinks.parquet_pointer import read_pointer

__all__ = ["read_pointer"]


def __getattr__(name: str) -> Any:
    """Opened on first use: the room is imported where pyarrow is not installed, too."""
    if name == "read_pointer":
        from spark_steps.sinks.parquet_pointer import read_pointer

        return read_pointer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
