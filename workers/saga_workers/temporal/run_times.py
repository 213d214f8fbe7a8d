"""Compares the times of runs with those of sagas, in seconds since the epoch: Temporal's times have more digits."""

from __future__ import annotations

from saga_workers.temporal.temporal_runs import RunInfo

PRECISION = 0.001
"""Seconds by which two records of the same time may differ."""


def was_started_by(run: RunInfo, at: float) -> bool:
    """True if the run had been started at this time."""
    return run.start_time.timestamp() - PRECISION <= at


def was_closed_before(run: RunInfo, at: float) -> bool:
    """True if the run was closed before this time."""
    return run.close_time is not None and run.close_time.timestamp() + PRECISION < at
