"""Builds the model from the parsed fields of a definition: applies defaults and derives kinds and guarantees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sagas.actions.result_forms import result_form
from sagas.builtins.messaging import EMITTERS, REQUEST, REQUEST_TIMEOUT
from sagas.builtins.registry import READ_METHODS, is_read_call, is_spark_job
from sagas.builtins.spark import JOB_HEARTBEAT, JOB_TIMEOUT, SPARK
from sagas.builtins.two_phase import is_two_phase
from sagas.definition.analysis.step_graph import StepGraph
from sagas.definition.model import (
    LOCK_WAIT,
    NOTIFICATION_INTERVALS,
    BulkTrigger,
    Compensation,
    Definition,
    Execution,
    Guarantee,
    KafkaTrigger,
    Locks,
    Notification,
    OnFailure,
    Operation,
    Probe,
    Retry,
    Savepoint,
    ScheduleTrigger,
    StepDefinition,
    StepKind,
    default_settle,
)
from sagas.definition.parser.draft import (
    OperationDraft,
    ProjectContext,
    SagaDraft,
    StepDraft,
    kafka_triggers,
    schedule_trigger,
)
from sagas.definition.parser.field_types import ParsedMapping
from sagas.definition.parser.operation_builder import (
    NO_OP_ACTIONS,
    BuildContext,
    DeclaredPromises,
    guard_only_operation,
    is_automatic,
    reply_probe,
    restore_operation,
    spark_publication,
    two_phase_operations,
    unwrap,
    with_held_event_operations,
    with_hold,
    wrap,
)

if TYPE_CHECKING:
    from sagas.actions.registry import Action

DEFAULT_TIMEOUT = 30.0
MAX_LOCAL_TIMEOUT = 5.0


def build_draft(file: str, root: ParsedMapping, graph: StepGraph, project: ProjectContext) -> SagaDraft:
    """The saga with its positions in the file. ``root`` has only steps with an id and an action, in file order."""
    steps = tuple(build_steps(root, graph, project))
    notify, notifications = build_notifications(root.get("notify") or [], build_context(root, project))
    definition = Definition(
        saga=root.get("saga", ""),
        steps=tuple(draft.step for draft in steps),
        description=root.get("description", ""),
        id=root.get("id"),
        labels=root.get("labels", {}),
        input=root.get("input", {}),
        output=root.values.get("output"),
        deadline=root.get("deadline"),
        warn_after=root.get("warn_after"),
        recovery=root.get("recovery", "backward"),
        language=root.get("language", 1),
        notify=notify,
        locks=_build_locks(root.get("locks"), project),
        triggers=_build_triggers(root),
        schedule=_build_schedule(schedule_trigger(root)),
        undo_leaves=tuple(root.get("undo_leaves") or ()),
    )
    return SagaDraft(file, root, definition, steps, graph, project, notify=notifications)


def build_context(root: ParsedMapping, project: ProjectContext) -> BuildContext:
    return BuildContext(project, root.get("defaults"), root.get("publish", "each"))


def build_steps(root: ParsedMapping, graph: StepGraph, project: ProjectContext) -> Iterator[StepDraft]:
    """The steps of a saga, each built when it is asked for. No step depends on how another one was built."""
    context = build_context(root, project)
    written = {parsed.get("id"): parsed for parsed in root.get("steps")}
    forward_only = root.get("recovery") == "forward"
    pivot = next((id for id in graph.order if written[id].get("pivot")), None)
    for id in graph.order:
        after_commit = forward_only or (pivot is not None and graph.is_ancestor(pivot, id))
        yield _build_step(written[id], graph.needs[id], context, after_commit)


def _build_step(parsed: ParsedMapping, needs: tuple[str, ...], context: BuildContext, after_commit: bool) -> StepDraft:
    uses = parsed.get("uses", "")
    declared = DeclaredPromises(parsed.values.get("idempotent"), parsed.values.get("remembers_rejections"))
    is_job = is_spark_job(uses)
    written_timeout = parsed.get("timeout") or context.default("timeout")
    timeout = written_timeout or _default_timeout(uses)
    queue = parsed.get("task_queue") or context.default("task_queue")
    arguments = context.long_form_arguments(uses, parsed.get("with", {}), after_commit)
    do = context.build_operation(
        parsed,
        arguments=arguments,
        forward=arguments,
        timeout=timeout,
        retry=context.default("retry"),
        heartbeat=context.default("heartbeat") or (min(JOB_HEARTBEAT, timeout / 2) if is_job else None),
        task_queue=queue,
        declared=declared,
    )
    has_place = uses == "pass" and bool(parsed.get("compensate"))
    reads = parsed.get("effect") == "none" or (is_read_call(uses, arguments) and not has_place)
    kind = _step_kind(parsed, reads, after_commit)
    two_phase = is_two_phase(uses, arguments) and kind == "compensatable"
    do = replace(do, two_phase=two_phase)
    do = with_hold(do, arguments, context.project.actions.get(uses), kind)
    if uses == "sql" and any(map(is_automatic, parsed.get("compensate") or [])):
        do = replace(do, images=True)
    drafts = [OperationDraft("do", do, parsed)]

    def other(role: Any, form: ParsedMapping) -> Operation:
        # The heartbeat and the retry of the forward action do not apply to its compensation.
        own = context.long_form_arguments(form.get("uses", ""), form.get("with", {})) if "with" in form else None
        usual = context.operation_default(role)
        operation = context.build_operation(
            form,
            arguments=own,
            forward=arguments,
            timeout=usual("timeout") or written_timeout or _default_timeout(form.get("uses", "")),
            retry=usual("retry") or context.default("retry"),
            heartbeat=None,
            task_queue=queue,
            declared=declared,
        )
        if operation.uses in NO_OP_ACTIONS:
            operation = guard_only_operation(do, operation.uses)
        elif role == "compensate" and is_automatic(form):
            operation = restore_operation(do, operation)
        drafts.append(OperationDraft(role, operation, form))
        return operation

    compensate = _build_compensation(parsed.get("compensate") or [], other)
    confirm = parsed.get("confirm")
    confirm = other("confirm", confirm) if confirm else None
    if uses == SPARK:
        own_compensate, own_confirm = spark_publication(do, after_commit)
        compensate, confirm = compensate or own_compensate, confirm or own_confirm
    if two_phase:
        compensate, confirm = two_phase_operations(do)
    compensate, confirm = with_held_event_operations(do, arguments, compensate, confirm)
    probe = parsed.get("probe")
    condition = parsed.get("if")
    facts = context.action_traits(uses, arguments, declared, queue is not None)
    step = StepDefinition(
        id=parsed.get("id"),
        name=parsed.get("name") or parsed.get("id"),
        kind=kind,
        do=do,
        needs=needs,
        if_=None if condition is None else wrap(condition),
        for_each=parsed.values.get("for_each"),
        max_parallel=parsed.get("max_parallel", 1),
        on_failure=parsed.get("on_failure") or _default_on_failure(kind, context),
        compensate=compensate,
        confirm=confirm,
        probe=_build_probe(probe, other("probe", probe)) if probe else reply_probe(do) if uses == REQUEST else None,
        settle=parsed.get("settle", facts.settle if facts.settle is not None else default_settle(do.timeout)),
        priority=parsed.get("priority"),
        fairness_key=parsed.get("fairness_key"),
        execution=_execution(parsed, do, context),
        guarantee=_guarantee(do),
        savepoint=_build_savepoint(parsed.get("savepoint")),
        commutative=bool(parsed.get("commutative")),
        undo_leaves=tuple(parsed.get("undo_leaves") or ()),
        result_form=_result_form(context.project.actions.get(uses)),
    )
    return StepDraft(parsed, step, tuple(drafts), after_commit)


def _result_form(action: Action | None) -> str | None:
    return None if action is None or action.batch else result_form(action.function)


def _default_timeout(uses: str) -> float:
    """Default timeout in seconds of one attempt of this action."""
    if is_spark_job(uses):
        return JOB_TIMEOUT
    return REQUEST_TIMEOUT if uses == REQUEST else DEFAULT_TIMEOUT


def _build_triggers(top: ParsedMapping) -> tuple[KafkaTrigger, ...]:
    """The triggers that start or signal sagas of this definition; those that could not be read are left out."""
    triggers = []
    for kafka_trigger in kafka_triggers(top):
        condition = kafka_trigger.values.get("filter")
        written = {"input": kafka_trigger.values["input"]} if "input" in kafka_trigger else {}
        triggers.append(
            KafkaTrigger(
                topic=kafka_trigger.get("topic", ""),
                id=kafka_trigger.values.get("id"),
                signal=kafka_trigger.values.get("signal"),
                filter=None if condition is None else wrap(condition),
                bulk=_build_bulk(kafka_trigger.values.get("bulk")),
                redeliver=kafka_trigger.values.get("redeliver") or (),
                **written,
            )
        )
    return tuple(triggers)


def _build_schedule(parsed: ParsedMapping | None) -> ScheduleTrigger | None:
    if parsed is None or parsed.get("cron") is None:
        return None
    return ScheduleTrigger(**{name: value for name, value in parsed.values.items() if value is not None})


def _build_bulk(parsed: ParsedMapping | None) -> BulkTrigger | None:
    if parsed is None:
        return None
    return BulkTrigger(**{name: value for name, value in parsed.values.items() if value is not None})


def _default_on_failure(kind: StepKind, context: BuildContext) -> OnFailure:
    default = context.default("on_failure") or "compensate"
    # A saga cannot continue as if its point of no return had not run.
    return "compensate" if kind == "pivot" and default == "continue" else default


def _build_compensation(forms: list[ParsedMapping], other: Any) -> Compensation | None:
    if not forms:
        return None
    alternates = tuple(other("compensate", form) for form in forms)
    confirmed = next((form.get("confirmed") for form in forms if form.get("confirmed")), None)
    always = any(form.get("always") for form in forms)
    return Compensation(alternates, other("confirmed", confirmed) if confirmed else None, always)


def _build_locks(parsed: ParsedMapping | None, project: ProjectContext) -> Locks | None:
    if parsed is None:
        return None
    return Locks(
        keys=parsed.get("keys", []),
        connection=project.locks or "",
        wait=parsed.get("wait", LOCK_WAIT),
        from_=parsed.get("from"),
        until=parsed.get("until", "final"),
    )


def _build_savepoint(parsed: ParsedMapping | None) -> Savepoint | None:
    if parsed is None:
        return None
    usual = Savepoint()
    return Savepoint(parsed.get("attempts", usual.attempts), parsed.get("wait", usual.wait))


def _build_probe(parsed: ParsedMapping, operation: Operation) -> Probe:
    expressions = {name: parsed.get(name) for name in ("done", "absent", "result")}
    return Probe(operation, **{name: unwrap(text) if text else None for name, text in expressions.items()})


def _step_kind(parsed: ParsedMapping, reads: bool, after_commit: bool) -> StepKind:
    """The kind that follows from the fields. The checks report a step that must be compensatable but is not."""
    if parsed.get("pivot"):
        return "pivot"
    if reads:
        return "read"
    return "retriable" if after_commit else "compensatable"


def can_be_local(do: Operation) -> bool:
    """True if a local activity is safe: the operation is guarded, short, and not bound to a task queue."""
    return do.guarded and do.timeout <= MAX_LOCAL_TIMEOUT and do.heartbeat is None and do.task_queue is None


def _execution(parsed: ParsedMapping, do: Operation, context: BuildContext) -> Execution:
    """The step's own `execution`, which the checks validate; a default of `local` applies only where it is safe."""
    if own := parsed.get("execution"):
        return own
    return "local" if context.default("execution") == "local" and can_be_local(do) else "remote"


def _guarantee(do: Operation) -> Guarantee:
    if do.guarded:
        return "two-phase" if do.two_phase else "guarded"
    return "participant-keyed" if do.idempotent else "at-least-once"


NOTIFICATION_TIMEOUT = 30.0
EVENT_EXPRESSION = "${{ event }}"
"""The whole event: id, type, timestamp and data; the default content of a notification."""

HTTP_GONE = 410
"""The only error status that ends the attempts by default: the receiver permanently refuses this notification."""


def build_notifications(
    forms: list[ParsedMapping], context: BuildContext
) -> tuple[tuple[Notification, ...], tuple[OperationDraft, ...]]:
    """The notifications that could be read, and their operations with positions."""
    usable = [form for form in forms if form.get("uses")]
    drafts = tuple(OperationDraft("notify", _notification_operation(form, context), form) for form in usable)
    made = tuple(
        Notification(
            when=tuple(dict.fromkeys(draft.parsed.get("when") or ())),
            do=draft.operation,
            intervals=tuple(draft.parsed.get("intervals") or NOTIFICATION_INTERVALS),
        )
        for draft in drafts
    )
    return made, drafts


def _notification_operation(form: ParsedMapping, context: BuildContext) -> Operation:
    uses = form.get("uses", "")
    local = uses in context.project.actions
    written = _with_event(uses, form.get("with") or {}, context, local=local)
    arguments = context.long_form_arguments(uses, written)
    operation = context.build_operation(
        form,
        arguments=arguments,
        forward=arguments,
        timeout=context.default("timeout") or NOTIFICATION_TIMEOUT,
        retry=None,
        heartbeat=None,
        task_queue=context.default("task_queue"),
        declared=DeclaredPromises(),
    )
    return Operation(
        uses=uses,
        with_=arguments,
        timeout=operation.timeout,
        retry=Retry(max_attempts=1),  # retries follow the notification's intervals
        task_queue=operation.task_queue,
        connection=operation.connection,
        local=operation.local,
    )


def _with_event(uses: str, written: Mapping[str, Any], context: BuildContext, *, local: bool) -> dict[str, Any]:
    """The arguments, with the event as content if the author specifies none."""
    arguments = dict(written)
    if uses == "http":
        arguments.setdefault("method", "POST")
        # All other statuses are retried, because a failing receiver may return any of them.
        arguments.setdefault("rejected", [HTTP_GONE])
        has_body = {"json", "form", "body"} & arguments.keys()
        if not has_body and str(arguments["method"]).upper() not in READ_METHODS:
            arguments["json"] = EVENT_EXPRESSION
    elif uses in EMITTERS and not {"value", "events"} & arguments.keys():
        arguments["value"] = EVENT_EXPRESSION
        arguments.setdefault("key", "${{ saga.id }}")
    elif local and any(parameter.name == "event" for parameter in context.project.actions[uses].signature.parameters):
        arguments.setdefault("event", EVENT_EXPRESSION)
    return arguments
