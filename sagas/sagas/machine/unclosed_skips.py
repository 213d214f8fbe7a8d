"""Skipped automatic undos whose images their database has not closed yet."""

from __future__ import annotations

from sagas.machine.state import Entry

NOT_RECORDED = "NotRecorded"
"""The type of the error of a skipped undo whose images the database has not closed: it was not reached, or refused."""


def is_unclosed(entry: Entry) -> bool:
    """True if an operator has skipped the undo, and the database has not closed its images yet."""
    return entry.undo is not None and (entry.undo.error or {}).get("type") == NOT_RECORDED
