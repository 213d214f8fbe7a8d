"""The words for a saga that waits for another one."""

from __future__ import annotations

from sagas.text.shell import saga_command


def parked_hint(owner: str) -> str:
    """The clause of a message about a wait for rows or locks of a parked saga."""
    return f"that saga is parked and waits for an operator: {saga_command('show', owner)}"
