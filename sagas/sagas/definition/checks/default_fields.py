"""Checks `defaults`: the values for contradictions, and whether any step takes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from sagas.builtins.registry import BUILTINS
from sagas.definition.checks.activity_options import check_retry_values, check_short_timeout
from sagas.definition.diagnostics import Report
from sagas.definition.model import Notification, Operation
from sagas.definition.parser.builder import (
    DEFAULT_TIMEOUT,
    MAX_LOCAL_TIMEOUT,
    build_context,
    build_notifications,
    build_steps,
)
from sagas.definition.parser.draft import OperationRole, SagaDraft, StepDraft
from sagas.definition.parser.field_types import ParsedMapping
from sagas.definition.parser.operation_builder import build_retry
from sagas.definition.times import format_duration

Path = tuple[str, ...]

LIMITS = ("max_attempts", "give_up_after")
_TAKERS = {"compensate": "undo", "confirm": "confirm"}
_OTHER_INTERVAL = 7_777.0


def check_default_fields(draft: SagaDraft, report: Report) -> None:
    """Report contradictions between the defaults, and warn about each default that has no effect.

    A default has an effect if the saga would be another one with another value. So the saga is built once more for each
    of them, up to the first step that is another one, and no rule about which steps take which default is written
    twice.
    """
    defaults = draft.root.get("defaults")
    if defaults is None:
        return
    _check_limits_of_confirms(defaults, report)
    effects = list(_effects(draft.steps, draft.definition.notify))
    for path, other in _other_values(defaults):
        if not _has_effect(draft, _with(defaults, path, other), effects):
            _warn_without_effect(defaults, path, report)
        elif path[-1] == "retry":
            _check_retry(draft, defaults, path, effects, report)
        elif path[-1] == "timeout" and defaults.get("execution") != "local":
            owner = _parent(defaults, path)
            check_short_timeout(owner, owner.get("timeout"), f"the default `{'.'.join(path)}`", report)


def _check_limits_of_confirms(defaults: ParsedMapping, report: Report) -> None:
    retry: ParsedMapping | None = _at(defaults, ("confirm", "retry"))
    for field in LIMITS:
        if retry is not None and field in retry:
            message = f"`{field}` cannot apply: every confirm is retried without limit"
            report.add("SAGA210", retry.position_of(field), message, "remove it")


def _check_retry(draft: SagaDraft, defaults: ParsedMapping, path: Path, effects: Sequence[Any], report: Report) -> None:
    written: ParsedMapping = _at(defaults, path)
    timeout = _parent(defaults, path).get("timeout") or defaults.get("timeout") or DEFAULT_TIMEOUT
    check_retry_values(written, build_retry(written), timeout, f"the default `{'.'.join(path)}`", report)
    for field in LIMITS if path == ("retry",) else ():
        if field in written and not _has_effect(draft, _with(defaults, (*path, field), 7_777), effects):
            message = f"the default `{field}` has no effect, because whatever takes it is retried without limit"
            report.add("SAGA118", written.position_of(field), message)


def _warn_without_effect(defaults: ParsedMapping, path: Path, report: Report) -> None:
    position = _parent(defaults, path).position_of(path[-1])
    if path == ("execution",):
        message = "the default `execution: local` has no effect, because no step can run locally"
        limit = format_duration(MAX_LOCAL_TIMEOUT)
        help = f"give guarded steps a `timeout` of at most {limit}, and neither a `heartbeat` nor a `task_queue`"
        report.add("SAGA118", position, message, help)
        return
    message = f"the default `{'.'.join(path)}` has no effect, because no {_TAKERS.get(path[0], 'step')} takes it"
    report.add("SAGA118", position, message)


def _other_values(defaults: ParsedMapping) -> Iterator[tuple[Path, Any]]:
    """The written defaults, each with a value that would make a difference; None stands for no default.

    Without the usual values `on_failure: compensate` and `execution: remote`, which may be written out.
    """
    for name in ("heartbeat", "connection", "task_queue"):
        if defaults.get(name) is not None:
            yield (name,), None
    for name, usual in (("on_failure", "compensate"), ("execution", "remote")):
        if defaults.get(name) not in (None, usual):
            yield (name,), None
    for parent in ((), ("compensate",), ("confirm",)):
        written = _at(defaults, parent)
        if written is not None and written.get("timeout") is not None:
            yield (*parent, "timeout"), written.get("timeout") + 1
        if written is not None and (retry := written.get("retry")) is not None:
            values = {**retry.values, "initial_interval": _OTHER_INTERVAL, "intervals": None}
            yield (*parent, "retry"), ParsedMapping(retry.node, values)


def _has_effect(draft: SagaDraft, defaults: ParsedMapping, effects: Sequence[Any]) -> bool:
    """Return whether the saga is another one with these defaults than the one with these ``effects``."""
    root = ParsedMapping(draft.root.node, {**draft.root.values, "defaults": defaults})
    steps = build_steps(root, draft.graph, draft.project)
    notify, _ = build_notifications(root.get("notify") or [], build_context(root, draft.project))
    return any(other != effect for other, effect in zip(_effects(steps, notify), effects, strict=True))


def _effects(steps: Iterable[StepDraft], notify: Iterable[Notification]) -> Iterator[Any]:
    """The parts of a saga that defaults can change, without the options of what the engine itself performs."""
    for step in steps:
        yield step.step.on_failure, step.step.execution, list(_calls(step))
    for notification in notify:
        yield notification.do


def _calls(step: StepDraft) -> Iterator[Operation]:
    compensate = step.step.compensate
    undos = () if compensate is None else (*compensate.alternates, compensate.confirmed)
    probe = None if step.step.probe is None else step.step.probe.operation
    groups: tuple[tuple[OperationRole, tuple[Operation | None, ...]], ...] = (
        ("do", (step.step.do,)),
        ("compensate", undos),
        ("confirm", (step.step.confirm,)),
        ("probe", (probe,)),
    )
    for role, operations in groups:
        for operation in operations:
            builtin = None if operation is None else BUILTINS.get(operation.uses)
            if operation is None or (builtin is not None and builtin.executor == "engine"):
                continue
            if step.retries_without_limit(role):
                unlimited = replace(operation.retry, max_attempts=1, give_up_after=None)
                yield replace(operation, retry=unlimited)
            else:
                yield operation


def _at(mapping: ParsedMapping | None, path: Path) -> Any:
    value: Any = mapping
    for name in path:
        value = None if value is None else value.get(name)
    return value


def _parent(defaults: ParsedMapping, path: Path) -> ParsedMapping:
    parent: ParsedMapping = _at(defaults, path[:-1])
    return parent


def _with(mapping: ParsedMapping, path: Path, value: Any) -> ParsedMapping:
    """The mapping with another value at ``path``; its positions stay."""
    name, *rest = path
    inner = _with(mapping.get(name), tuple(rest), value) if rest else value
    return ParsedMapping(mapping.node, {**mapping.values, name: inner})
