"""Errors for a value in a row of the engine's tables that this process cannot read."""

from __future__ import annotations

from sagas.errors import InfrastructureError, NeedsOperator


class UnreadableRow(Exception):
    """A value in a row cannot be read here."""


class MissingRowKey(UnreadableRow, InfrastructureError):
    """A value is encrypted with a key that this process does not have. An attempt is made again: a worker with the key
    of the row can go on.
    """


class ChangedRow(UnreadableRow, NeedsOperator):
    """A value is not what the engine has written. No key reads it and no attempt changes that, so an attempt parks."""

    def __init__(self) -> None:
        super().__init__("a stored value of this saga was changed in its database")
