"""The name of a step in a report: with the path of the nested sagas that it belongs to."""

from __future__ import annotations


def step_of(entry: str) -> str:
    """``buy/charge`` of the entry ``buy#0/charge#1``."""
    return "/".join(part.partition("#")[0] for part in entry.split("/"))
