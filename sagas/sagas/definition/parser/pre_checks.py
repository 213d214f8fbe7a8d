"""Pre-checks: `check` of a step becomes a step of its own, which only reads and runs before all others.

So a check has attempts, timeouts, items and a row in `saga show` like any step, and a rejected one ends the saga before
its first effect: there is nothing to compensate. Its answer is not a promise, as in the first phase of three-phase
commit (Skeen, "Nonblocking Commit Protocols", 1981): what was possible then may be rejected when the step runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sagas.builtins.registry import BUILTINS
from sagas.definition.diagnostics import Report
from sagas.definition.model import CHECK_SUFFIX
from sagas.definition.parser.field_types import ParsedMapping
from sagas.definition.parser.language import MAX_PARALLEL
from sagas.definition.parser.yaml_nodes import YamlNode

POSSIBLE_BUILTINS = ("http", "require", "sql")

_COPIED_FROM_STEP = ("if", "for_each", "task_queue")


def with_pre_checks(steps: list[ParsedMapping], report: Report, *, forward_only: bool) -> list[ParsedMapping]:
    """The pre-checks, then the steps. Steps with an empty `needs` come to need all pre-checks. Reports SAGA240."""
    checks = [_check_step(step) for step in steps if step.get("check") and _is_possible(step, report, forward_only)]
    ids = [check.get("id") for check in checks]
    for step in steps:
        if ids and step.values.get("needs") == []:
            step.values["needs"] = ids
    return checks + steps


def _is_possible(step: ParsedMapping, report: Report, forward_only: bool) -> bool:
    check: ParsedMapping = step.get("check")
    uses = check.get("uses", "")
    problem = None
    if forward_only:
        problem = "a saga with `recovery: forward` cannot end before its first step"
    elif uses in BUILTINS and uses not in POSSIBLE_BUILTINS:
        problem = f"`{uses}` cannot check anything without an effect"
    elif uses in BUILTINS and "with" not in check:
        problem = f"`check: {uses}` would perform the step itself; give the check a `with` of its own"
    elif uses == "sql" and not all(map(_is_query, _statements(check.get("with", {})))):
        problem = "a check only reads: write a SELECT"
    if problem is not None:
        report.add("SAGA240", step.position_of("check"), problem)
    return problem is None


def _statements(arguments: Mapping[str, Any]) -> list[str]:
    run = arguments.get("run")
    listed = run if isinstance(run, list) else [run]
    return [str(statement.get("sql") if isinstance(statement, dict) else statement) for statement in listed]


def _is_query(statement: str) -> bool:
    return statement.lstrip(" \t\r\n(").lower().startswith(("select", "with", "values", "table"))


def _check_step(step: ParsedMapping) -> ParsedMapping:
    """The check as a step. Its nodes are those of `check` and of the step, for the positions of diagnostics."""
    check: ParsedMapping = step.get("check")
    own = {} if isinstance(check.node.value, str) else dict(check.node.value)
    node = YamlNode(
        {"uses": check.node, **_nodes_of_step(step, "id", "with", *_COPIED_FROM_STEP), **own},
        check.node.line,
        check.node.column,
    )
    node.key_positions = {**step.node.key_positions, **check.node.key_positions}
    name = step.get("name") or step.get("id")
    values = {
        **{field: step.values[field] for field in ("with", *_COPIED_FROM_STEP) if field in step.values},
        **check.values,
        "id": step.get("id") + CHECK_SUFFIX,
        "name": f"check {name}",
        "needs": [],
        "effect": "none",
        "on_failure": "compensate",
        "max_parallel": MAX_PARALLEL,
    }
    return ParsedMapping(node, values)


def _nodes_of_step(step: ParsedMapping, *fields: str) -> dict[str, YamlNode]:
    return {field: step.node_of(field) for field in fields if field in step}
