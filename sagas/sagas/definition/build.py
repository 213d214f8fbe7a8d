"""From the fields an author wrote to the model: everything explicit, every kind derived."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sagas.builtins import is_read
from sagas.builtins_request import REQUEST, REQUEST_TIMEOUT
from sagas.builtins_spark import JOB_HEARTBEAT, JOB_TIMEOUT, SPARK
from sagas.definition.draft import Connections, Draft, KafkaHome, OperationDraft, SparkHome, StepDraft, kafka_triggers
from sagas.definition.graph import Graph
from sagas.definition.held_events import BRINGS_NOTHING, beside, held_operations, holding
from sagas.definition.model import (
    Compensation,
    Definition,
    Execution,
    Guarantee,
    KafkaTrigger,
    Kind,
    OnFailure,
    Operation,
    Probe,
    Step,
)
from sagas.definition.notifications import build_notifications
from sagas.definition.operations import Environment, bare, wrapped
from sagas.definition.records import Parsed
from sagas.definition.request_operations import reply_probe
from sagas.definition.spark_operations import is_spark_job, spark_operations

DEFAULT_TIMEOUT = 30.0
LOCAL_TIMEOUT = 5.0


def build_draft(
    file: str,
    top: Parsed,
    graph: Graph,
    actions: Mapping[str, Any],
    connections: Connections | None,
    spark: SparkHome | None = None,
    kafka: KafkaHome | None = None,
) -> Draft:
    """The saga with places. ``top`` holds only steps with an id and an action, in file order."""
    environment = Environment(actions, connections, top.get("defaults"), spark, top.get("publish", "each"), kafka)
    written = {parsed.get("id"): parsed for parsed in top.get("steps")}
    forward_only = top.get("recovery") == "forward"
    pivot = next((id for id in graph.order if written[id].get("pivot")), None)
    steps = []
    for id in graph.order:
        after_commit = forward_only or (pivot is not None and graph.is_ancestor(pivot, id))
        steps.append(_build_step(written[id], graph.needs[id], environment, after_commit))
    notify, told = build_notifications(top.get("notify") or [], environment)
    definition = Definition(
        saga=top.get("saga", ""),
        steps=tuple(draft.step for draft in steps),
        description=top.get("description", ""),
        id=top.get("id"),
        labels=top.get("labels", {}),
        input=top.get("input", {}),
        output=top.values.get("output"),
        deadline=top.get("deadline"),
        warn_after=top.get("warn_after"),
        recovery=top.get("recovery", "backward"),
        language=top.get("language", 1),
        notify=notify,
        triggers=_triggers(top),
    )
    return Draft(file, top, definition, tuple(steps), graph, actions, connections, spark, kafka, notify=told)


def _build_step(parsed: Parsed, needs: tuple[str, ...], environment: Environment, after_commit: bool) -> StepDraft:
    uses = parsed.get("uses", "")
    idempotent = parsed.values.get("idempotent")
    is_job = is_spark_job(uses)
    written_timeout = parsed.get("timeout") or environment.default("timeout")
    timeout = written_timeout or _usual_timeout(uses)
    queue = parsed.get("task_queue") or environment.default("task_queue")
    arguments = environment.arguments(uses, parsed.get("with", {}), after_commit)
    do = environment.operation(
        parsed,
        arguments=arguments,
        forward=arguments,
        timeout=timeout,
        retry=environment.default("retry"),
        heartbeat=environment.default("heartbeat") or (min(JOB_HEARTBEAT, timeout / 2) if is_job else None),
        task_queue=queue,
        idempotent=idempotent,
    )
    reads = parsed.get("effect") == "none" or is_read(uses, arguments)
    kind = _kind(parsed, reads, after_commit)
    do = holding(do, arguments, environment.actions.get(uses), kind)
    drafts = [OperationDraft("do", do, parsed)]

    def other(role: Any, form: Parsed) -> Operation:
        # A heartbeat or a retry of the forward action says nothing about the action that undoes it.
        own = environment.arguments(form.get("uses", ""), form.get("with", {})) if "with" in form else None
        operation = environment.operation(
            form,
            arguments=own,
            forward=arguments,
            timeout=written_timeout or _usual_timeout(form.get("uses", "")),
            retry=environment.default("retry"),
            heartbeat=None,
            task_queue=queue,
            idempotent=idempotent,
        )
        if operation.uses in BRINGS_NOTHING:
            operation = beside(do, operation.uses)
        drafts.append(OperationDraft(role, operation, form))
        return operation

    compensate = _compensation(parsed.get("compensate") or [], other)
    confirm = parsed.get("confirm")
    confirm = other("confirm", confirm) if confirm else None
    if uses == SPARK:
        own_compensate, own_confirm = spark_operations(do, after_commit)
        compensate, confirm = compensate or own_compensate, confirm or own_confirm
    compensate, confirm = held_operations(do, arguments, compensate, confirm)
    probe = parsed.get("probe")
    condition = parsed.get("if")
    facts = environment.facts(uses, arguments, idempotent, queue is not None)
    step = Step(
        id=parsed.get("id"),
        name=parsed.get("name") or parsed.get("id"),
        kind=kind,
        do=do,
        needs=needs,
        if_=None if condition is None else wrapped(condition),
        for_each=parsed.values.get("for_each"),
        max_parallel=parsed.get("max_parallel", 1),
        on_failure=parsed.get("on_failure") or _default_on_failure(kind, environment),
        compensate=compensate,
        confirm=confirm,
        probe=_probe(probe, other("probe", probe)) if probe else reply_probe(do) if uses == REQUEST else None,
        settle=parsed.get("settle", facts.settle if facts.settle is not None else do.timeout),
        priority=parsed.get("priority"),
        fairness_key=parsed.get("fairness_key"),
        execution=_execution(parsed, do, environment),
        guarantee=_guarantee(do),
    )
    return StepDraft(parsed, step, tuple(drafts), after_commit)


def _usual_timeout(uses: str) -> float:
    """Seconds an attempt of this action may take where nothing is said."""
    if is_spark_job(uses):
        return JOB_TIMEOUT
    return REQUEST_TIMEOUT if uses == REQUEST else DEFAULT_TIMEOUT


def _triggers(top: Parsed) -> tuple[KafkaTrigger, ...]:
    """What starts or wakes sagas of this definition; left out where it is not readable."""
    found = []
    for one in kafka_triggers(top):
        condition = one.values.get("filter")
        written = {"input": one.values["input"]} if "input" in one else {}
        found.append(
            KafkaTrigger(
                topic=one.get("topic", ""),
                id=one.values.get("id"),
                signal=one.values.get("signal"),
                filter=None if condition is None else wrapped(condition),
                **written,
            )
        )
    return tuple(found)


def _default_on_failure(kind: Kind, environment: Environment) -> OnFailure:
    default = environment.default("on_failure") or "compensate"
    # Nobody can go on as if the point of no return had not run.
    return "compensate" if kind == "pivot" and default == "continue" else default


def _compensation(forms: list[Parsed], other: Any) -> Compensation | None:
    if not forms:
        return None
    alternates = tuple(other("compensate", form) for form in forms)
    confirmed = next((form.get("confirmed") for form in forms if form.get("confirmed")), None)
    return Compensation(alternates, other("confirmed", confirmed) if confirmed else None)


def _probe(parsed: Parsed, operation: Operation) -> Probe:
    expressions = {name: parsed.get(name) for name in ("done", "absent", "result")}
    return Probe(operation, **{name: bare(text) if text else None for name, text in expressions.items()})


def _kind(parsed: Parsed, reads: bool, after_commit: bool) -> Kind:
    """Kinds follow from the fields. A step that has to be compensatable but is not fails the checks."""
    if parsed.get("pivot"):
        return "pivot"
    if reads:
        return "read"
    return "retriable" if after_commit else "compensatable"


def can_be_local(do: Operation) -> bool:
    """True when a local activity is safe: guarded, short, and not bound to a queue."""
    return do.guarded and do.timeout <= LOCAL_TIMEOUT and do.heartbeat is None and do.task_queue is None


def _execution(parsed: Parsed, do: Operation, environment: Environment) -> Execution:
    """A default of `local` holds where it is possible; what a step says itself is checked."""
    if own := parsed.get("execution"):
        return own
    return "local" if environment.default("execution") == "local" and can_be_local(do) else "remote"


def _guarantee(do: Operation) -> Guarantee:
    if do.guarded:
        return "guarded"
    return "participant-keyed" if do.idempotent else "at-least-once"
