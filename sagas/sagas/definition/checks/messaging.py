"""Events: one or a list, `hold` written out and where it can wait, and a home for what goes to Kafka."""

from __future__ import annotations

from collections.abc import Iterator

from sagas.builtins_messaging import DROP, EMITTERS, PUBLISH, RELEASE, refused_header
from sagas.definition.checks.arguments import check_connection
from sagas.definition.diagnostics import Place, Report
from sagas.definition.draft import Draft, OperationDraft, StepDraft
from sagas.definition.source import Node

_PLACES = {DROP: ("compensate", "confirmed"), RELEASE: ("confirm",)}


def check_messaging(draft: Draft, report: Report) -> None:
    """All operations that emit events, or that are there for events only."""
    for step in draft.steps:
        for operation in step.operations:
            uses = operation.operation.uses
            if uses in _PLACES:
                _check_held_only(step, operation, report)
                continue
            given = _mapping(operation.arguments)
            if uses in EMITTERS and operation.operation.with_ is not None:
                _check_events(operation, given, report)
            if uses == PUBLISH:
                check_home(draft, PUBLISH, operation.place, report)
            for event in _events(uses, given):
                if "hold" in event:
                    _check_hold(step, operation, event["hold"], report)
                _check_headers(event, report)


def _check_events(operation: OperationDraft, given: dict[str, Node], report: Report) -> None:
    uses = operation.operation.uses
    place = operation.arguments or operation.place
    if "events" in given:
        for name in ("topic", "key", "value", "headers", "hold"):
            if name in given:
                report.add("SAGA113", given[name], f"`events` and `{name}` of `{uses}` exclude each other")
    elif "topic" not in given:
        report.add("SAGA402", place, f"`{uses}` needs the argument `topic` or `events`")
    elif "value" not in given:
        report.add("SAGA402", place, f"`{uses}` needs the argument `value`")
    if "wait" in given and any(_is_held(event) for event in _events(uses, given)) and operation.operation.holds:
        message = "`wait: published` and `hold: true` exclude each other: a held event is not published before the end"
        report.add("SAGA113", given["wait"], message)


def check_home(draft: Draft, uses: str, place: Place, report: Report) -> None:
    """``uses`` keeps what it sends in the database of ``[kafka] outbox``."""
    if draft.kafka is None:
        return
    if draft.kafka.outbox is None:
        report.add("SAGA412", place, f"`{uses}` has no database for what it sends")
    else:
        check_connection(draft, uses, draft.kafka.outbox, "sql", place, report)


def _check_hold(step: StepDraft, operation: OperationDraft, node: Node, report: Report) -> None:
    if isinstance(node.value, str):
        report.add(
            "SAGA413", node, "`hold` decides how the step ends, so it has to be true or false, not an expression"
        )
    elif node.value is True and not operation.operation.holds:
        where = f"of `{step.id}`" if operation.role == "do" else f"in the {operation.role} of `{step.id}`"
        why = "there is no commit point to wait for" if operation.role == "do" else "only the step itself can wait"
        report.add("SAGA118", node, f"`hold` {where} has no effect: {why}")


def _check_held_only(step: StepDraft, operation: OperationDraft, report: Report) -> None:
    uses = operation.operation.uses
    if operation.role not in _PLACES[uses]:
        words = " or ".join(f"`{one}`" for one in _PLACES[uses][:1])
        report.add("SAGA414", operation.place, f"`{uses}` stands under {words} only")
    elif not step.step.do.holds:
        report.add("SAGA414", operation.place, f"`{step.id}` holds no event, so `{uses}` has nothing to do")


def _check_headers(event: dict[str, Node], report: Report) -> None:
    headers = event.get("headers")
    if headers is not None and (name := refused_header(_mapping(headers))) is not None:
        report.add("SAGA416", headers.key(name), f"the header `{name}` of an event is the engine's own")


def _is_held(event: dict[str, Node]) -> bool:
    return "hold" in event and event["hold"].value is True


def _events(uses: str, given: dict[str, Node]) -> Iterator[dict[str, Node]]:
    """The events as they are written: one in the arguments themselves, or those of a list."""
    if uses in EMITTERS and "events" not in given:
        yield given
    events = given.get("emit" if uses == "sql" else "events") if uses in ("sql", *EMITTERS) else None
    for event in events.value if events is not None and isinstance(events.value, list) else ():
        yield _mapping(event)


def _mapping(node: Node | None) -> dict[str, Node]:
    return node.value if node is not None and isinstance(node.value, dict) else {}
