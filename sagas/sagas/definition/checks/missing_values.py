"""Checks uses of values that may be missing: results that may be null, and optional properties of the input.

Before the commit point such a use fails the step, and the saga is undone: a warning. Where the saga would park, it is
an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sagas.definition.checks.scopes import ExpressionScope
from sagas.definition.diagnostics import Report
from sagas.definition.model import checked_entry
from sagas.definition.optional_properties import gaps
from sagas.definition.parser.draft import StepDraft
from sagas.definition.parser.yaml_nodes import Position
from sagas.expressions import ANY_ELEMENT, Expression, ExpressionError, compile_expression
from sagas.expressions.presence import NO_FACTS, Facts, Use, facts_of, find_uses, holds
from sagas.expressions.template_syntax import split_template

_OWN_CONDITION = ("do", "undo", "confirm", "probe")
_PARKING = ("undo", "confirm", "probe", "output")
_MISSING, _PARKS = "SAGA305", "SAGA310"


def check_missing_values(
    expression: Expression, scope: ExpressionScope, report: Report, position_at: Callable[[int], Position]
) -> None:
    """Report the uses in one expression of names that exist. ``position_at``: of an offset in its source."""
    facts = _facts_of_the_place(scope)
    results = {one.offset for one in expression.references if not one.guarded and scope.problem(one.path) is None}
    for use in find_uses(expression.node, facts):
        if use.absorbed:
            continue
        root = use.path[0]
        if root == "steps" and use.offset in results:
            _check_result(use, scope, report, position_at(use.offset))
        elif root in ("input", "item"):
            _check_property(use, scope, report, position_at(use.offset))


def _check_result(use: Use, scope: ExpressionScope, report: Report, position: Position) -> None:
    why = scope.null_reason(use.path)
    target = scope.draft.steps_by_id.get(use.path[1]) if len(use.path) > 1 else None
    if why is None or target is None:
        return
    own = scope.step is not None and target.id == scope.step.id
    skipped_only = target.step.on_failure != "continue" and not own
    if skipped_only and scope.kind != "notify" and target.step.if_ is not None:
        condition = _compiled(target.step.if_)
        if condition is not None and holds(condition.node, use.facts):
            return
    path = _written(use.path)
    help = f"give a default: default({path}, …), or test for null: steps.{target.id}.result != null ? … : …"
    # Null itself is a value, and a step's own result is null only if its attempts stay unknown.
    fails = len(use.path) > len(("steps", target.id, "result")) and not own
    report.add(_PARKS if fails and _parks(scope) else _MISSING, position, f"`{path}` may be null: {why}", help)


def _check_property(use: Use, scope: ExpressionScope, report: Report, position: Position) -> None:
    source = scope.item_source() if use.path[0] == "item" else None
    if use.path[0] == "item" and source is None:
        return
    whole = use.path if source is None else (*source, *use.path[1:])
    before = len(whole) - len(use.path)
    for length, kind in gaps(scope.draft.definition.input, whole[1:]):
        own = use.path[: length + 1 - before]
        if len(own) < 2:
            continue
        if own in (use.facts.present if kind == "optional" else use.facts.values):
            continue
        path = _written(own)
        if kind == "optional":
            message = f"`{path}` is optional and has no default"
            help = f"write default({path}, …) or has({path}) ? … : …, or give the property a `default` in the schema"
        else:
            message = f"`{path}` may be null"
            help = f"write default({_written(use.path)}, …), or test for null: {path} != null ? … : …"
        report.add(_PARKS if _parks(scope) else "SAGA309", position, message, help)
        return


def _parks(scope: ExpressionScope) -> bool:
    """Whether a saga parks if an expression fails here."""
    if scope.kind in _PARKING:
        return True
    step = scope.step
    if step is None or scope.kind not in ("do", "decide") or checked_entry(step.id) is not None:
        return False
    return step.after_commit and step.step.on_failure != "continue"


def _facts_of_the_place(scope: ExpressionScope) -> Facts:
    """What holds whenever a step runs: its own `if`, and what a `require` before it demands."""
    step = scope.step
    if step is None:
        return NO_FACTS
    facts = NO_FACTS
    if scope.kind in _OWN_CONDITION and step.step.if_ is not None:
        condition = _compiled(step.step.if_)
        facts = facts_of(None if condition is None else condition.node, True)
    for demand in _requirements_before(scope, step):
        facts = facts | facts_of(demand.node, True)
    return facts


def _requirements_before(scope: ExpressionScope, step: StepDraft) -> Iterator[Expression]:
    for other in scope.draft.steps:
        do = other.step.do
        certain = other.step.if_ is None and other.step.for_each is None and other.step.on_failure != "continue"
        if do.uses == "require" and certain and scope.draft.graph.is_ancestor(other.id, step.id):
            condition = _compiled((do.with_ or {}).get("that"))
            if condition is not None:
                yield condition


def _compiled(source: object) -> Expression | None:
    if not isinstance(source, str):
        return None
    try:
        parts = split_template(source)
        return compile_expression(parts[0].text) if len(parts) == 1 and parts[0].expression else None
    except ExpressionError:
        return None  # reported where it is written


def _written(path: tuple[str, ...]) -> str:
    """The path as an author would write it."""
    text = path[0]
    for part in path[1:]:
        if part == ANY_ELEMENT:
            text += "[…]"
        else:
            text += f".{part}" if part.isidentifier() else f'["{part}"]'
    return text
