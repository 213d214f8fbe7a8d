"""Checks events, `hold`, the outbox, `kafka.request` commands, triggers and notifications."""

from __future__ import annotations

from collections.abc import Iterator

from sagas.builtins.argument_groups import group_mistakes
from sagas.builtins.messaging import (
    DROP,
    EMITTERS,
    PUBLISH,
    RELEASE,
    REQUEST,
    events_of,
    first_reserved_header,
    is_held,
    is_reserved,
)
from sagas.builtins.registry import BUILTINS
from sagas.definition.checks.arguments import check_connection, check_operation
from sagas.definition.diagnostics import Positioned, Report, suggestion_help
from sagas.definition.literal_values import input_mistakes
from sagas.definition.parser.draft import OperationDraft, SagaDraft, StepDraft, kafka_triggers, schedule_trigger
from sagas.definition.parser.field_types import ParsedMapping, quoted_names
from sagas.definition.parser.operation_builder import has_reply_probe
from sagas.definition.parser.yaml_nodes import YamlNode, children_of

MAX_BULK_WAIT = 5.0
"""Seconds that an event may wait for others to share a workflow with."""

_ALLOWED_ROLES = {DROP: ("compensate", "confirmed"), RELEASE: ("confirm",)}


def check_messaging(draft: SagaDraft, report: Report) -> None:
    """Check all operations that emit events, and those that exist only for events."""
    for step in draft.steps:
        for operation in step.operations:
            uses = operation.operation.uses
            if uses in _ALLOWED_ROLES:
                _check_held_only(step, operation, report)
                continue
            given = children_of(operation.arguments)
            if uses in EMITTERS and operation.operation.with_ is not None:
                _check_events(operation, given, report)
            if uses == PUBLISH:
                check_outbox(draft, PUBLISH, operation.position, report)
            for event in _events(uses, given):
                if "hold" in event:
                    _check_hold(step, operation, event["hold"], report)
                _check_headers(event, report)


def _check_events(operation: OperationDraft, given: dict[str, YamlNode], report: Report) -> None:
    uses = operation.operation.uses
    position = operation.arguments or operation.position
    for mistake in group_mistakes(uses, given):
        report.add(mistake.code, given.get(mistake.argument or "", position), mistake.message)
    if "wait" in given and any(_is_held(event) for event in _events(uses, given)) and operation.operation.holds:
        message = (
            "`wait: published` and `hold: true` exclude each other: a held event is not published before "
            "the commit point"
        )
        report.add("SAGA113", given["wait"], message)


def check_outbox(draft: SagaDraft, uses: str, position: Positioned, report: Report) -> None:
    """Check the connection ``[kafka] outbox``, whose database stores what ``uses`` sends."""
    if draft.project.kafka is None:
        return
    if draft.project.kafka.outbox is None:
        report.add("SAGA412", position, f"`{uses}` has no database for its events")
    else:
        check_connection(draft, uses, draft.project.kafka.outbox, "sql", position, report)


def _check_hold(step: StepDraft, operation: OperationDraft, node: YamlNode, report: Report) -> None:
    if isinstance(node.value, str):
        report.add(
            "SAGA413", node, "`hold` must be true or false, not an expression, because it decides how the step ends"
        )
    elif node.value is True and not operation.operation.holds:
        where = f"of `{step.id}`" if operation.role == "do" else f"in the {operation.role} of `{step.id}`"
        why = "only events of the step's own `uses` wait for the commit point"
        if operation.role == "do":
            why = "there is no commit point to wait for"
        report.add("SAGA118", node, f"`hold` {where} has no effect: {why}")


def _check_held_only(step: StepDraft, operation: OperationDraft, report: Report) -> None:
    uses = operation.operation.uses
    if operation.role not in _ALLOWED_ROLES[uses]:
        words = " or ".join(f"`{role}`" for role in _ALLOWED_ROLES[uses][:1])
        report.add("SAGA414", operation.position, f"`{uses}` is allowed under {words} only")
    elif not step.step.do.holds:
        report.add("SAGA414", operation.position, f"`{step.id}` holds no event, so `{uses}` has nothing to do")


def _check_headers(event: dict[str, YamlNode], report: Report) -> None:
    headers = event.get("headers")
    if headers is not None and (name := first_reserved_header(children_of(headers))) is not None:
        report.add("SAGA416", headers.key_position(name), f"the header `{name}` of an event is reserved for the engine")


def _is_held(event: dict[str, YamlNode]) -> bool:
    return "hold" in event and event["hold"].value is True


def _events(uses: str, given: dict[str, YamlNode]) -> Iterator[dict[str, YamlNode]]:
    """The events as written: a single one in the arguments themselves, or those of a list."""
    if uses in EMITTERS and "events" not in given:
        yield given
    events = given.get("emit" if uses == "sql" else "events") if uses in ("sql", *EMITTERS) else None
    for event in events.value if events is not None and isinstance(events.value, list) else ():
        yield children_of(event)


def check_requests(draft: SagaDraft, report: Report) -> None:
    """Check the outbox, the reply topic and the headers of all commands with replies."""
    for step in draft.steps:
        for operation in step.operations:
            if operation.operation.uses == REQUEST:
                check_outbox(draft, REQUEST, operation.position, report)
                _check_request_arguments(operation, report)
                _check_request_heartbeat(step, operation, report)
        if step.step.do.uses == REQUEST:
            _check_request_fields(step, report)


def _check_request_arguments(operation: OperationDraft, report: Report) -> None:
    node = operation.arguments
    given = children_of(node)
    reply_topic, headers = given.get("reply_topic"), given.get("headers")
    if reply_topic is not None and isinstance(reply_topic.value, str) and "${{" in reply_topic.value:
        message = (
            "`reply_topic` cannot be an expression, because the consumer of the replies reads it from the definitions"
        )
        report.add("SAGA415", reply_topic, message)
    if headers is None or not isinstance(headers.value, dict):
        return
    for name in headers.value:
        if is_reserved(name):
            report.add(
                "SAGA416", headers.key_position(name), f"the header `{name}` of `{REQUEST}` is reserved for the engine"
            )


def _check_request_heartbeat(step: StepDraft, operation: OperationDraft, report: Report) -> None:
    if "heartbeat" in operation.parsed:
        position = operation.parsed.position_of("heartbeat")
        message = (
            f"`heartbeat` of `{step.id}` has no effect because no worker is busy with an attempt that waits for a reply"
        )
        report.add("SAGA118", position, message)


def _check_request_fields(step: StepDraft, report: Report) -> None:
    because = {
        "idempotent": "because a command is written once, whatever is retried",
        "remembers_rejections": "because all attempts wait for the reply to one command",
    }
    if has_reply_probe(step.step):
        because["settle"] = "because the reply is looked up where it is recorded"
    for field, why in because.items():
        if field in step.parsed:
            report.add("SAGA118", step.parsed.position_of(field), f"`{field}` of `{step.id}` has no effect {why}")


def check_triggers(draft: SagaDraft, report: Report) -> None:
    """Report triggers whose signal no step waits for, or whose input the saga's schema refuses: every event would be a
    dead letter, and every scheduled start refused; and signals that cannot share a workflow."""
    for trigger in kafka_triggers(draft.root):
        _check_bulk(trigger, report)
        _check_redelivery(draft, trigger, report)
        if trigger.values.get("signal"):
            _check_signal(draft, trigger, report)
        elif "input" in trigger:
            node = trigger.node_of("input")
            for place, message in input_mistakes(draft.definition, node):
                report.add("SAGA132", place or node, message)
    if (schedule := schedule_trigger(draft.root)) is not None:
        node = schedule.node_of("input") if "input" in schedule else None
        for place, message in input_mistakes(draft.definition, node):
            report.add("SAGA132", place or node or schedule.node, message)


def _check_bulk(trigger: ParsedMapping, report: Report) -> None:
    bulk = trigger.values.get("bulk")
    if bulk is None:
        return
    if trigger.values.get("signal"):
        report.add("SAGA133", trigger.position_of("bulk"), "a trigger with `signal` starts no saga")
    elif (bulk.get("wait") or 0) > MAX_BULK_WAIT:
        report.add("SAGA133", bulk.node_of("wait"), f"an event would wait longer than {MAX_BULK_WAIT:g}s")


def _check_redelivery(draft: SagaDraft, trigger: ParsedMapping, report: Report) -> None:
    if not trigger.values.get("redeliver"):
        return
    position = trigger.position_of("redeliver")
    if trigger.values.get("signal"):
        report.add("SAGA138", position, "a trigger with `signal` starts no saga")
    elif trigger.values.get("bulk") is not None:
        report.add("SAGA138", position, "sagas that share a workflow (`bulk`) do not know the event that started them")
    elif draft.definition.recovery == "forward":
        report.add("SAGA138", position, "a saga with `recovery: forward` is never compensated")


def _check_signal(draft: SagaDraft, trigger: ParsedMapping, report: Report) -> None:
    name = trigger.get("signal")
    if "id" not in trigger:
        report.add("SAGA131", trigger.node_of("signal"), "this trigger signals a saga, but has no `id` of it")
    waits = [step.step.do.with_ or {} for step in draft.steps if step.step.do.uses == "wait"]
    signals = [str(arguments["signal"]) for arguments in waits if "signal" in arguments]
    # A signal name with an expression may match any name.
    if name in signals or any("${{" in signal for signal in signals):
        return
    help = (
        f"`wait` steps receive {quoted_names(signals)}" if signals else "no `wait` step of this saga receives a signal"
    )
    report.add(
        "SAGA130",
        trigger.node_of("signal"),
        f"no `wait` receives the signal `{name}`",
        suggestion_help(name, signals, help),
    )


_NOT_NOTIFYING = ("kafka.request", RELEASE, DROP)
"""Actions that request or settle something, so they cannot be notifications."""


def check_notifications(draft: SagaDraft, report: Report) -> None:
    """Report notifications that cannot be sent, or whose milestone never occurs."""
    for operation in draft.notify:
        uses = operation.operation.uses
        if uses not in draft.project.actions and _cannot_notify(uses):
            report.add("SAGA140", operation.position, f"`{uses}` cannot deliver a notification")
            continue
        check_operation(draft, operation, operation, report)
        _check_no_held_events(operation, report)
        _check_milestones(draft, operation, report)


def _cannot_notify(uses: str) -> bool:
    builtin = BUILTINS.get(uses)
    return uses in _NOT_NOTIFYING or (builtin is not None and builtin.executor in ("engine", "spark"))


def _check_milestones(draft: SagaDraft, operation: OperationDraft, report: Report) -> None:
    definition, when = draft.definition, operation.parsed.get("when") or ()
    position = operation.parsed.position_of("when")
    if "overdue" in when and definition.warn_after is None:
        report.add("SAGA141", position, "this saga has no `warn_after`, so it is never overdue")
    if "compensated" in when and definition.recovery == "forward":
        report.add("SAGA141", position, "a saga with `recovery: forward` is never compensated")


def _check_no_held_events(operation: OperationDraft, report: Report) -> None:
    if any(map(is_held, events_of(operation.operation.uses, operation.operation.with_ or {}))):
        report.add("SAGA140", operation.position, "a held event waits for a commit point, and none comes after this")
