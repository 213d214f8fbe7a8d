"""The input of commands that only play: given, or made up from the saga's schema."""

from __future__ import annotations

from typing import Any

from saga_cli.inputs import read_input
from sagas.definition.model import Definition
from sagas.simulation import Outside, sample_input


def given_or_made_up(definition: Definition, text: str | None, outside: Outside) -> tuple[Any, bool]:
    """The input, and whether it is made up. Raises UsageError: ``text`` is no JSON."""
    if text is not None:
        return read_input(text, []), False
    return sample_input(definition, outside), True
