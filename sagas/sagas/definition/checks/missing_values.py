"""Checks uses of values that may be missing: results that may be null, and optional properties of the input.

Before the commit point such a use fails the step, and the saga is undone: a warning. Where the saga would park, it is
an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set

from sagas.definition.checks.scopes import ExpressionScope
from sagas.definition.diagnostics import Report
from sagas.definition.model import checked_entry
from sagas.definition.optional_properties import gaps
from sagas.definition.parser.draft import SagaDraft, StepDraft
from sagas.definition.parser.yaml_nodes import Position
from sagas.expressions import ANY_ELEMENT, Expression, ExpressionError, compile_expression
from sagas.expressions.presence import NO_FACTS, Facts, Use, facts_of, facts_of_value, find_uses, holds
from sagas.expressions.template_syntax import OPENING, split_template

_OWN_CONDITION = ("do", "undo", "confirm", "probe")
_AFTER_THE_CALL = ("undo", "confirm", "probe")
_PARKING = ("undo", "confirm", "probe", "output")
_MISSING, _PARKS = "SAGA305", "SAGA310"


def check_missing_values(
    expression: Expression, scope: ExpressionScope, report: Report, position_at: Callable[[int], Position]
) -> None:
    """Report the uses in one expression of names that exist. ``position_at`` gives the position of an offset in its
    source.
    """
    results = {
        reference.offset
        for reference in expression.references
        if not reference.guarded and scope.problem(reference.path) is None
    }
    if not any(_finding(use, scope, results) for use in find_uses(expression.node)):
        return
    for use in find_uses(expression.node, _facts_of_the_place(scope)):
        if (finding := _finding(use, scope, results)) is not None:
            report.add(finding[0], position_at(use.offset), *finding[1:])


def check_refusal(expression: Expression, report: Report, position_at: Callable[[int], Position]) -> None:
    """Report the fields of the body that a response may lack, in a condition such as `rejected_when`, without `default`
    and `has`.
    """
    for use in find_uses(expression.node):
        if use.path[:2] == ("response", "json") and len(use.path) > len(("response", "json")) and not use.absorbed:
            path = _written(use.path)
            if use.path not in use.facts.present:
                help = f"write default({path}, …) or has({path}) && …: without the field, the outcome would be unknown"
                report.add("SAGA314", position_at(use.offset), f"`{path}` may be missing in a response", help)


Finding = tuple[str, str, str]
"""The code, the message and the help."""


def _finding(use: Use, scope: ExpressionScope, results: Set[int]) -> Finding | None:
    """``results``: the offsets of results of steps that are not guarded against null."""
    if use.absorbed:
        return None
    if use.path[0] == "steps":
        if use.path[2:4] == ("results", ANY_ELEMENT):
            return _null_element(use, scope)
        return _null_result(use, scope) if use.offset in results else None
    return _missing_property(use, scope) if use.path[0] in ("input", "item") else None


def _null_result(use: Use, scope: ExpressionScope) -> Finding | None:
    why = scope.null_reason(use.path)
    target = scope.draft.steps_by_id.get(use.path[1]) if len(use.path) > 1 else None
    if why is None or target is None:
        return None
    own = scope.step is not None and target.id == scope.step.id
    skipped_only = target.step.on_failure != "continue" and not own
    if skipped_only and scope.kind != "notify" and target.step.if_ is not None:
        condition = _compiled(target.step.if_)
        if condition is not None and holds(condition.node, use.facts):
            return None
    path = _written(use.path)
    test = f"test for null: steps.{target.id}.result != null ? … : …"
    is_always = own and target.step.compensate is not None and target.step.compensate.always
    if scope.kind == "undo" and is_always:
        help = test
    elif scope.kind == "undo" and own:
        # A default would let the undo pass over an effect that exists.
        help = (
            "undo by the key of the call instead: step.forward_key, which the participant knows also if its answer was "
            "lost; or give the step a `probe` that finds the effect"
        )
    else:
        help = f"give a default: default({path}, …), or {test}"
    # Null itself is a value. Without `always`, a step's own result is null only if its attempts stay unknown.
    fails = len(use.path) > len(("steps", target.id, "result")) and (not own or is_always)
    return (_PARKS if fails and _parks(scope) else _MISSING, f"`{path}` may be null: {why}", help)


def _null_element(use: Use, scope: ExpressionScope) -> Finding | None:
    """The finding about a field of one of the results of a step with `for_each`: null itself is a value."""
    element, why = use.path[:4], scope.null_reason(use.path)
    if why is None or len(use.path) == len(element) or element in use.facts.values:
        return None
    path = _written(use.path)
    help = f"leave it out: steps.{use.path[1]}.results.filter(r, r != null), or give a default: default({path}, …)"
    return (_PARKS if _parks(scope) else _MISSING, f"`{path}` may be null: {why}", help)


def _missing_property(use: Use, scope: ExpressionScope) -> Finding | None:
    source = scope.item_source() if use.path[0] == "item" else None
    if use.path[0] == "item" and source is None:
        return None
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
        return (_PARKS if _parks(scope) else "SAGA309", message, help)
    return None


def _parks(scope: ExpressionScope) -> bool:
    """Return whether a saga parks if an expression fails here."""
    if scope.kind in _PARKING:
        return True
    step = scope.step
    if step is None or scope.kind not in ("do", "decide") or checked_entry(step.id) is not None:
        return False
    return step.after_commit and step.step.on_failure != "continue"


def _facts_of_the_place(scope: ExpressionScope) -> Facts:
    """Return what holds whenever the expression is evaluated: what its own step and those before it have evaluated."""
    step, facts = scope.step, NO_FACTS
    if step is not None and scope.kind in _OWN_CONDITION and step.step.if_ is not None:
        condition = _compiled(step.step.if_)
        facts = facts_of(None if condition is None else condition.node, True)
    if step is not None and scope.kind in _AFTER_THE_CALL:
        facts = facts | _facts_after(step, scope.draft)
    for other in scope.draft.steps:
        if scope.kind == "output" or (step is not None and scope.draft.graph.is_ancestor(other.id, step.id)):
            skipped = other.step.if_ is not None or other.step.on_failure == "continue"
            if not skipped and other.step.for_each is None:
                facts = facts | _facts_after(other, scope.draft)
    return facts


def _facts_after(step: StepDraft, draft: SagaDraft) -> Facts:
    """Return what is known once the arguments of the step were evaluated, which comes before its effect."""
    if step.id not in draft.facts_after:
        draft.facts_after[step.id] = _facts_of_arguments(step)
    return draft.facts_after[step.id]


def _facts_of_arguments(step: StepDraft) -> Facts:
    given, facts = step.step.do.with_ or {}, NO_FACTS
    if step.step.do.uses == "finish":
        # Steps below run only if the condition is false, and then its output was not evaluated.
        condition = _compiled(given.get("when"))
        return NO_FACTS if condition is None else facts_of_value(condition.node) | facts_of(condition.node, False)
    for expression in _expressions(given):
        facts = facts | facts_of_value(expression.node)
    if step.step.do.uses == "require" and (that := _compiled(given.get("that"))) is not None:
        facts = facts | facts_of(that.node, True)
    return facts


def _expressions(value: object) -> Iterator[Expression]:
    if isinstance(value, Mapping | list):
        for child in value.values() if isinstance(value, Mapping) else value:
            yield from _expressions(child)
    elif isinstance(value, str) and OPENING in value:
        try:
            yield from (compile_expression(part.text) for part in split_template(value) if part.expression)
        except ExpressionError:
            return  # reported where it is written


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
