"""A made-up input with which a saga completes, if there is a simple one."""

from __future__ import annotations

from typing import Any

from sagas.definition.input import check_input
from sagas.definition.model import Definition
from sagas.simulation.driver import simulate
from sagas.simulation.run import Outside
from sagas.simulation.samples import DIGITS, sample_of
from sagas.simulation.script import Script


def sample_input(definition: Definition, outside: Outside | None = None) -> Any:
    """An input made up from the schema; the same definition always gives the same one.

    Texts are the names of their properties where the saga completes with them, else digits: a definition that calls
    ``decimal(input.amount)`` needs an amount. It may still not fit a schema with conditions or patterns.
    """
    named = sample_of(definition, None)
    if check_input(definition, named)[1]:
        return sample_of(definition, DIGITS)
    run = simulate(definition, named, Script(invented=True), outside)
    return named if run.state == "COMPLETED" else sample_of(definition, DIGITS)
