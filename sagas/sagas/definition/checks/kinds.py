"""Checks a step's fields against its kind and its position relative to the commit point."""

from __future__ import annotations

from sagas.builtins.messaging import EMITTERS
from sagas.builtins.registry import BUILTINS, is_read_call
from sagas.definition.checks.nested_sagas import keeps_confirmed
from sagas.definition.checks.probes import answers
from sagas.definition.diagnostics import Report
from sagas.definition.model import ENGINE_ACTIONS
from sagas.definition.parser.builder import MAX_LOCAL_TIMEOUT, can_be_local
from sagas.definition.parser.draft import OperationDraft, SagaDraft, StepDraft

_NOT_ON_A_PIVOT = ("compensate", "confirm", "for_each", "if")
_WITHOUT = {
    "sql": "leave out `expect_rows`",
    "http": "write `rejected: []` without `rejected_when` and `callback.rejected`",
    "wait": "write `on_timeout: continue` or `park`",
}
"""Without what the step cannot be rejected."""

_NOT_ON_A_READ = ("compensate", "confirm", "pivot")
_UNDO_OR_CONFIRM = {"compensate": "undo", "confirmed": "undo", "confirm": "confirm"}


def check_kinds(draft: SagaDraft, report: Report) -> None:
    """Check that every step has one consistent kind: pivot, compensatable, retriable or read."""
    _check_saga(draft, report)
    _check_undo_of_confirmed(draft, report)
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
                position = step.parsed.node_of("id")
                report.add(
                    "SAGA209", position, f"`{step.id}` runs parallel to the pivot `{pivot.id}` and has an effect"
                )
            else:
                _check_compensatable(step, report)
        _check_attempt_limits(step, report)
        _check_engine_actions(draft, step, report)
        if "savepoint" in step.parsed:
            _check_savepoint(draft, step, report)


def _check_saga(draft: SagaDraft, report: Report) -> None:
    if draft.definition.recovery == "forward" and "deadline" in draft.root:
        report.add(
            "SAGA115", draft.root.position_of("deadline"), "a saga with `recovery: forward` cannot have a `deadline`"
        )
    pivots = [step for step in draft.root.get("steps") if step.get("pivot")]
    for extra in pivots[1:]:
        first = pivots[0].get("id")
        report.add(
            "SAGA203", extra.position_of("pivot"), f"`{extra.get('id')}` is a second pivot; the first is `{first}`"
        )


def _check_read(step: StepDraft, report: Report) -> None:
    for field in _NOT_ON_A_READ:
        if step.parsed.get(field):
            what = "has `effect: none`" if "effect" in step.parsed else f"only reads (`{step.step.do.uses}`)"
            report.add("SAGA207", step.parsed.position_of(field), f"`{step.id}` {what}, so it cannot have `{field}`")
    arguments = step.step.do.with_ or {}
    if step.step.do.uses == "sql" and arguments.get("emit"):
        report.add("SAGA207", step.parsed.node_of("with"), f"`{step.id}` only reads, so it cannot `emit` events")
    if "effect" in step.parsed and (effect := _certain_effect(step.step.do.uses)) is not None:
        message = f"`{step.id}` has `effect: none`, and `{step.step.do.uses}` {effect}"
        report.add("SAGA207", step.parsed.node_of("effect"), message, "remove `effect: none`")


def _certain_effect(uses: str) -> str | None:
    """The effect of a built-in action beside reading, whatever its arguments; None if it may only read."""
    if uses in EMITTERS:
        return "publishes events"
    builtin = BUILTINS.get(uses)
    return "brings its own undo" if builtin is not None and builtin.own_undo else None


def _check_pivot(draft: SagaDraft, step: StepDraft, report: Report) -> None:
    if draft.definition.recovery == "forward":
        message = f"`{step.id}` cannot be the pivot: with `recovery: forward` the commit point is the start"
        report.add("SAGA212", step.parsed.position_of("pivot"), message)
        return
    for field in _NOT_ON_A_PIVOT:
        if field in step.parsed:
            report.add("SAGA204", step.parsed.position_of(field), f"the pivot `{step.id}` cannot have `{field}`")
    if step.step.do.uses == "http" and is_read_call("http", step.step.do.with_ or {}):
        message = f"`{step.id}` only reads (`http`), so it cannot have `pivot`"
        report.add("SAGA207", step.parsed.position_of("pivot"), message)
    if step.parsed.get("on_failure") == "continue":
        report.add(
            "SAGA204", step.parsed.node_of("on_failure"), f"the pivot `{step.id}` cannot have `on_failure: continue`"
        )


def _check_savepoint(draft: SagaDraft, step: StepDraft, report: Report) -> None:
    position, graph = step.parsed.position_of("savepoint"), draft.graph
    if step.step.pivot or step.after_commit:
        report.add("SAGA241", position, f"nothing is undone after `{step.id}`, so it cannot be a savepoint")
        return
    others = [other.id for other in draft.steps if other.id != step.id]
    parallel = next(
        (id for id in others if not (graph.is_ancestor(id, step.id) or graph.is_ancestor(step.id, id))), None
    )
    if parallel is not None:
        message = f"`{parallel}` runs parallel to the savepoint `{step.id}`"
        report.add("SAGA241", position, message, "all other steps must come before a savepoint or after it")
    elif not any(graph.is_ancestor(step.id, id) for id in others):
        report.add("SAGA241", position, f"no step follows the savepoint `{step.id}`")


def _check_after_commit(draft: SagaDraft, step: StepDraft, report: Report) -> None:
    forward = draft.definition.recovery == "forward"
    if step.parsed.get("compensate") and not step.reads:
        code, where = (
            ("SAGA212", "is in a saga with `recovery: forward`") if forward else ("SAGA206", "comes after the pivot")
        )
        report.add(code, step.parsed.position_of("compensate"), f"`{step.id}` {where} and is never undone")
    if step.parsed.get("on_failure") == "compensate":
        message = f"`{step.id}` comes after the commit point, where nothing is rolled back"
        report.add("SAGA208", step.parsed.node_of("on_failure"), message)
    if not forward and step.step.on_failure == "compensate" and step.step.do.rejects:
        message, uses = f"{step.id} comes after the pivot and may be rejected", step.step.do.uses
        without = "declare the action with rejects=False" if uses in draft.project.actions else _WITHOUT.get(uses)
        report.add("SAGA103", step.parsed.node_of("uses"), message, _may_be_rejected(without))


def _may_be_rejected(without: str | None) -> str:
    words = ["move the step before the pivot", *([without] if without else ())]
    return (
        "after the pivot nothing is rolled back, so a rejection parks the saga: "
        f"{', '.join(words)}, or write `on_failure: park` or `continue`"
    )


def _check_compensatable(step: StepDraft, report: Report) -> None:
    builtin = BUILTINS.get(step.step.do.uses)
    own_undo = builtin is not None and builtin.own_undo
    # A field that was written and could not be read is reported where it was read.
    decided = any(
        field in step.parsed and step.parsed.get(field) is None for field in ("compensate", "effect", "pivot")
    )
    if step.step.compensate is None and not decided and "compensate" not in step.parsed and not own_undo:
        message = f"`{step.id}` has an effect before the commit point and no `compensate`"
        help = "write `hold: true`, or compensate with a counter-event" if step.step.do.uses in EMITTERS else None
        report.add("SAGA205", step.parsed.node_of("id"), message, help)


def _check_engine_actions(draft: SagaDraft, step: StepDraft, report: Report) -> None:
    """Check what the state machine itself performs: where a `finish` is, and that nothing else is an undo of it."""
    for operation in step.operations:
        uses = operation.operation.uses
        if operation.role in _UNDO_OR_CONFIRM and uses in ENGINE_ACTIONS and uses not in draft.project.actions:
            message = f"`{uses}` cannot {_UNDO_OR_CONFIRM[operation.role]} a step"
            report.add("SAGA242", operation.position, message)
        elif operation.role in _UNDO_OR_CONFIRM and uses == "http" and _only_reads(step, operation):
            what = "confirm of it" if operation.role == "confirm" else "undo of it"
            report.add("SAGA243", operation.position, f"`{step.id}` is not changed by the {what}, which only reads")
    if step.step.do.uses == "pass" and not step.reads and "confirm" in step.parsed:
        message = f"`{step.id}` does nothing (`pass`), so it cannot have `confirm`"
        report.add("SAGA207", step.parsed.position_of("confirm"), message)
    if step.step.do.uses != "finish":
        return
    graph, position = draft.graph, step.parsed.node_of("uses")
    parallel = (
        other.id
        for other in draft.steps
        if not other.reads and not graph.is_ancestor(other.id, step.id) and not graph.is_ancestor(step.id, other.id)
    )
    if step.after_commit and draft.definition.recovery != "forward":
        report.add("SAGA214", position, f"`{step.id}` comes after the pivot, where the saga has to go on")
    elif "for_each" in step.parsed:
        report.add("SAGA214", step.parsed.position_of("for_each"), f"`{step.id}` completes the saga, so it runs once")
    elif step.step.pivot:
        report.add("SAGA214", step.parsed.position_of("pivot"), f"`{step.id}` has no effect that decides the saga")
    elif (other := next((id for id in parallel if id != step.id), None)) is not None:
        report.add("SAGA214", position, f"`{other}` runs parallel to `{step.id}` and has an effect")


def _only_reads(step: StepDraft, operation: OperationDraft) -> bool:
    frozen = step.step.do.with_ or {}
    own = operation.operation.with_
    return is_read_call(operation.operation.uses, frozen if own is None else own)


def _check_undo_of_confirmed(draft: SagaDraft, report: Report) -> None:
    """Check that `compensate.confirmed` can ever run: a committed saga is undone as a whole, or not at all."""
    if draft.definition.recovery == "forward" or draft.pivot is not None:
        return
    undone = [step.id for step in draft.steps if any(operation.role == "confirmed" for operation in step.operations)]
    for step in draft.steps if undone else ():
        if keeps_confirmed(step.step):
            position = step.parsed.position_of("confirm") if "confirm" in step.parsed else step.parsed.node_of("id")
            message = (
                f"nothing undoes `{step.id}` after its confirm, so `saga undo` is refused, and `compensate.confirmed` "
                f"of `{undone[0]}` never runs"
            )
            report.add("SAGA216", position, message)


def _check_attempt_limits(step: StepDraft, report: Report) -> None:
    """Report attempt limits on operations that are retried without limit. Inherited limits are ignored there."""
    for operation in step.operations:
        retry = operation.parsed.get("retry")
        if retry is None or not step.retries_without_limit(operation.role):
            continue
        for field in ("max_attempts", "give_up_after"):
            if field in retry:
                what = "the confirm of " if operation.role == "confirm" else ""
                message = f"`{field}` cannot apply: {what}`{step.id}` is retried without limit"
                help = "remove it" if operation.role == "confirm" else None  # whatever its `on_failure` is
                report.add("SAGA210", retry.position_of(field), message, help)


def check_participants(draft: SagaDraft, report: Report) -> None:
    """Check unguarded steps whose attempts may stay unknown, and `execution: local`."""
    for step in draft.steps:
        uses, local = step.step.do.uses, step.step.do.local
        if uses in draft.project.actions or uses in BUILTINS or not local:
            _check_unguarded(draft, step, report)
        _check_local(step, report)


def _check_unguarded(draft: SagaDraft, step: StepDraft, report: Report) -> None:
    do = step.step.do
    builtin = BUILTINS.get(do.uses)
    if do.guarded or answers(draft, step) or (builtin is not None and builtin.executor == "engine"):
        return
    position = step.parsed.node_of("uses")
    if step.step.pivot:
        report.add("SAGA220", position, f"the pivot `{step.id}` is unguarded and has no `probe` with a result")
    elif not step.reads and not do.idempotent:
        report.add("SAGA221", position, f"`{step.id}` is unguarded, not idempotent and has no `probe` with a result")


def _check_local(step: StepDraft, report: Report) -> None:
    do = step.step.do
    if step.parsed.get("execution") != "local" or can_be_local(do):
        return
    if not do.guarded:
        reason = "is not guarded by a database transaction"
    elif do.timeout > MAX_LOCAL_TIMEOUT:
        reason = f"may take longer than {MAX_LOCAL_TIMEOUT:g}s (give it a shorter `timeout`)"
    else:
        reason = "has a `heartbeat`" if do.heartbeat is not None else "has a `task_queue`"
    report.add("SAGA116", step.parsed.node_of("execution"), f"`{step.id}` {reason}, so it cannot run locally")
