"""The form of an operator's decision, which is external JSON: the types of its fields, and which options go with it."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, get_args

from sagas.errors import nearest
from sagas.protocol.messages import DecisionMade
from sagas.protocol.saga_view import Decision
from sagas.text.json_values import json_problem

DECISIONS: tuple[str, ...] = get_args(Decision)


def malformed_decision(decision: DecisionMade) -> str | None:
    """Check the types of a decision: it is external JSON, so every field may have any type."""
    for name, value in (("step", decision.step), ("decision", decision.decision), ("reason", decision.reason)):
        if not isinstance(value, str) or not value.strip():
            return f"a decision needs the string `{name}`, not {value!r}"
    if not isinstance(decision.who, str):
        return f"a decision needs the string `who`, not {json_type(decision.who)}"
    if decision.decision not in DECISIONS:
        hint = f"; did you mean {near}?" if (near := nearest(decision.decision, DECISIONS)) else ""
        return f"there is no decision `{decision.decision}`; decisions are {', '.join(DECISIONS)}{hint}"
    for option, only, value in (
        ("--with", "retry", decision.arguments),
        ("--definition", "retry", decision.definition),
        ("--result", "done", decision.result),
    ):
        if value is not None and decision.decision != only:
            return f"{option} can only be used with `{only}`, not with `{decision.decision}`"
    if decision.arguments is not None and not isinstance(decision.arguments, Mapping):
        return f"--with takes an object of arguments, not {json_type(decision.arguments)}"
    if decision.evidence is not None and not isinstance(decision.evidence, str):
        return f"--evidence takes a string, not {json_type(decision.evidence)}"
    words = [decision.step, decision.reason, decision.who, decision.evidence]
    for name, value in (("--with", decision.arguments), ("--result", decision.result), ("the decision", words)):
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
