"""Where a step stands to the commit point, and what it may therefore say."""

from __future__ import annotations

from sagas.builtins import BUILTINS
from sagas.builtins_messaging import EMITTERS
from sagas.definition.diagnostics import Report
from sagas.definition.draft import Draft, StepDraft

_NOT_ON_A_PIVOT = ("compensate", "confirm", "for_each", "if")
_NOT_ON_A_READ = ("compensate", "confirm", "pivot")


def check_kinds(draft: Draft, report: Report) -> None:
    """Pivot, compensatable, retriable, read: every step has one consistent kind."""
    _check_saga(draft, report)
    pivot = draft.pivot
    for step in draft.steps:
        if "effect" in step.parsed or step.reads:
            _check_read(step, report)
        if step.parsed.get("pivot"):
            _check_pivot(draft, step, report)
        elif step.after_commit:
            _check_after_commit(draft, step, report)
        elif not step.reads:
            parallel = pivot is not None and not draft.graph.is_ancestor(step.id, pivot.id)
            if parallel and pivot is not None:
                place = step.parsed.at("id")
                report.add("SAGA209", place, f"`{step.id}` runs parallel to the pivot `{pivot.id}` and has an effect")
            else:
                _check_compensatable(step, report)
        _check_limits(step, report)


def _check_saga(draft: Draft, report: Report) -> None:
    if draft.definition.recovery == "forward" and "deadline" in draft.top:
        report.add("SAGA115", draft.top.place("deadline"), "a saga with `recovery: forward` cannot have a `deadline`")
    pivots = [step for step in draft.top.get("steps") if step.get("pivot")]
    for extra in pivots[1:]:
        first = pivots[0].get("id")
        report.add("SAGA203", extra.place("pivot"), f"`{extra.get('id')}` is a second pivot; the first is `{first}`")


def _check_read(step: StepDraft, report: Report) -> None:
    for field in _NOT_ON_A_READ:
        if step.parsed.get(field):
            what = "says `effect: none`" if "effect" in step.parsed else f"only reads (`{step.step.do.uses}`)"
            report.add("SAGA207", step.parsed.place(field), f"`{step.id}` {what}, so it cannot have `{field}`")


def _check_pivot(draft: Draft, step: StepDraft, report: Report) -> None:
    if draft.definition.recovery == "forward":
        message = f"`{step.id}` cannot be the pivot: with `recovery: forward` the commit point is the start"
        report.add("SAGA212", step.parsed.place("pivot"), message)
        return
    for field in _NOT_ON_A_PIVOT:
        if field in step.parsed:
            report.add("SAGA204", step.parsed.place(field), f"the pivot `{step.id}` cannot have `{field}`")
    if step.parsed.get("on_failure") == "continue":
        report.add("SAGA204", step.parsed.at("on_failure"), f"the pivot `{step.id}` cannot say `on_failure: continue`")


def _check_after_commit(draft: Draft, step: StepDraft, report: Report) -> None:
    forward = draft.definition.recovery == "forward"
    if step.parsed.get("compensate") and not step.reads:
        code, where = (
            ("SAGA212", "is in a saga with `recovery: forward`") if forward else ("SAGA206", "comes after the pivot")
        )
        report.add(code, step.parsed.place("compensate"), f"`{step.id}` {where} and is never undone")
    if step.parsed.get("on_failure") == "compensate":
        message = f"`{step.id}` comes after the commit point, where nothing leads backward"
        report.add("SAGA208", step.parsed.at("on_failure"), message)
    if not forward and step.step.on_failure == "compensate" and step.step.do.rejects:
        report.add("SAGA103", step.parsed.at("uses"), f"{step.id} comes after the pivot and may be rejected")


def _check_compensatable(step: StepDraft, report: Report) -> None:
    builtin = BUILTINS.get(step.step.do.uses)
    own_undo = builtin is not None and builtin.own_undo
    if step.step.compensate is None and "compensate" not in step.parsed and not own_undo:
        message = f"`{step.id}` has an effect before the commit point and no `compensate`"
        help = "Say `hold: true`, or compensate with a counter-event." if step.step.do.uses in EMITTERS else None
        report.add("SAGA205", step.parsed.at("id"), message, help)


def _check_limits(step: StepDraft, report: Report) -> None:
    """Limits of attempts where retries have no limit: written ones only, inherited ones just do not apply."""
    for operation in step.operations:
        endless = operation.role == "confirm" or (
            operation.role == "do" and step.after_commit and step.step.on_failure == "compensate"
        )
        retry = operation.parsed.get("retry")
        if not endless or retry is None:
            continue
        for field in ("max_attempts", "give_up_after"):
            if field in retry:
                what = "the confirm of " if operation.role == "confirm" else ""
                message = f"`{field}` cannot count: {what}`{step.id}` is retried without limit"
                report.add("SAGA210", retry.place(field), message)
