"""The form of an operator's decision, which is external JSON: the types of its fields, and which go together."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from decimal import Decimal
from typing import Any, get_args

from sagas.errors import nearest
from sagas.protocol.messages import DecisionMade
from sagas.protocol.saga_view import Decision
from sagas.text.json_values import json_problem

DECISIONS: tuple[str, ...] = get_args(Decision)

_FIELD_DECISIONS: Mapping[str, Decision] = {"with": "retry", "definition": "retry", "result": "done"}
"""The decision that each of these fields belongs to."""


def misplaced_field(decision: str, given: Collection[str]) -> str | None:
    """A sentence about the first given field that belongs to another decision; it begins with the field's name."""
    for field, only in _FIELD_DECISIONS.items():
        if field in given and decision != only:
            return f"{field} can only be used with `{only}`, not with `{decision}`"
    return None


def malformed_decision(decision: DecisionMade) -> str | None:
    """The mistake in the fields of a decision, each of which may have any type; None if there is none."""
    for name, value in (("step", decision.step), ("decision", decision.decision), ("reason", decision.reason)):
        if not isinstance(value, str) or not value.strip():
            return f"a decision needs the string `{name}`, not {value!r}"
    if not isinstance(decision.who, str):
        return f"a decision needs the string `who`, not {json_type(decision.who)}"
    if decision.decision not in DECISIONS:
        hint = f"; did you mean {near}?" if (near := nearest(decision.decision, DECISIONS)) else ""
        return f"there is no decision `{decision.decision}`; decisions are {', '.join(DECISIONS)}{hint}"
    values = {"with": decision.arguments, "definition": decision.definition, "result": decision.result}
    given = [field for field, value in values.items() if value is not None]
    if (problem := misplaced_field(decision.decision, given)) is not None:
        return problem
    if decision.arguments is not None and not isinstance(decision.arguments, Mapping):
        return f"with takes an object of arguments, not {json_type(decision.arguments)}"
    if decision.evidence is not None and not isinstance(decision.evidence, str):
        return f"evidence takes a string, not {json_type(decision.evidence)}"
    words = [decision.step, decision.reason, decision.who, decision.evidence]
    for name, value in (("with", decision.arguments), ("result", decision.result), ("the decision", words)):
        if (problem := json_problem(value)) is not None:
            return f"{name} is not accepted: {problem}"
    return None


def json_type(value: Any) -> str:
    """The JSON type of a value, for messages."""
    match value:
        case bool():
            return "true or false"
        case int() | Decimal():
            return "a number"
        case str():
            return "a string"
        case list():
            return "a list"
        case None:
            return "null"
        case _:
            return "an object"
