"""The words for a saga that waits for another one."""

from __future__ import annotations

from sagas.text.shell import saga_command


def parked_hint(owner: str) -> str:
    """The clause for who waits for rows or locks of a saga that does not go on without an operator."""
    return f"that saga is parked and waits for an operator: {saga_command('show', owner)}"
