"""Runs that have the id of a saga, or of its undo, and are none of it."""

from __future__ import annotations

from saga_workers.temporal.temporal_runs import RunInfo
from sagas.text.shortening import shorten

_MOST_SHOWN = 80
"""Characters of the name of a workflow or task queue that anybody may have chosen."""


def holder_in_words(run: RunInfo) -> str:
    """The run that has the id of a saga, for messages."""
    what = f"a run of {shorten(run.workflow_type, _MOST_SHOWN)}"
    return f"{what} on the task queue {shorten(run.task_queue, _MOST_SHOWN)}"
