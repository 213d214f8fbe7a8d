"""The summaries of runs, activities and timers in the Web UI."""

from __future__ import annotations

from sagas.text.json_values import encodable
from sagas.text.markdown import markdown_text

SUMMARY_LIMIT = 200
"""Maximum characters of a summary; Temporal accepts 400 bytes."""


def limit_summary(text: str) -> str:
    """Truncate a summary of the Web UI to Temporal's limit; it may have text from data, which must not fail a run."""
    text = encodable(text)
    if len(text) <= SUMMARY_LIMIT and len(text.encode()) <= 2 * SUMMARY_LIMIT - 8:
        return text
    short = text[: SUMMARY_LIMIT - 1]
    while len(short.encode()) > 2 * SUMMARY_LIMIT - 16:
        short = short[:-1]
    return short + "…"


def run_summary(text: str) -> str:
    """The summary of a run, which the Web UI renders as Markdown; that of an activity or a timer is plain text."""
    return limit_summary(markdown_text(" ".join(text.split())))
