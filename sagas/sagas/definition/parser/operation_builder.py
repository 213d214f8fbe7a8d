"""Builds the operations of a step: expands short forms, applies defaults, and adds what the engine itself needs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sagas.builtins import messaging
from sagas.builtins.automatic import AUTO, RESTORE
from sagas.builtins.callbacks import CALLBACK, CALLBACK_ADDRESS
from sagas.builtins.http_statuses import STATUS_LISTS
from sagas.builtins.messaging import DROP, EMITTERS, RELEASE, REPLY_PROBE, REQUEST, events_of, is_held
from sagas.builtins.misplaced_arguments import OF_A_STATEMENT
from sagas.builtins.registry import BUILTINS, EXPRESSION, marks_expressions, may_reject
from sagas.builtins.schemas import code_kinds, element_schemas
from sagas.builtins.spark import (
    DISCARD,
    JOB_ATTEMPTS,
    PUBLISH,
    PUBLISH_TIMEOUT,
    RECONCILE,
    REVERT,
    SPARK,
    spark_long_form,
)
from sagas.builtins.two_phase import COMMIT, ROLLBACK
from sagas.builtins.url_templates import encoded_path, encoded_url
from sagas.definition.model import Compensation, Operation, Probe, Retry, StepDefinition, StepKind
from sagas.definition.parser.draft import ProjectContext
from sagas.definition.parser.field_types import ParsedMapping
from sagas.expressions import ExpressionError
from sagas.expressions.template_syntax import OPENING, split_template

if TYPE_CHECKING:
    from sagas.actions.registry import Action


_WRAPPED = re.compile(r"\s*\$\{\{(.*)\}\}\s*", re.DOTALL)


def unwrap(expression: str) -> str:
    """The CEL source without the surrounding `${{ }}`."""
    match = _WRAPPED.fullmatch(expression)
    return (match.group(1) if match else expression).strip()


def wrap(expression: str) -> str:
    """The CEL source as `${{ … }}`, which renders to its value."""
    return "${{ " + unwrap(expression) + " }}"


def build_retry(parsed: ParsedMapping | None) -> Retry:
    """The retry policy as written, with the language's defaults for missing fields."""
    if parsed is None:
        return Retry()
    usual = Retry()
    initial = parsed.get("initial_interval", usual.initial_interval)
    intervals = parsed.get("intervals")
    return Retry(
        max_attempts=parsed.get("max_attempts", usual.max_attempts),
        initial_interval=initial,
        backoff_coefficient=parsed.get("backoff_coefficient", usual.backoff_coefficient),
        max_interval=parsed.get("max_interval", max(usual.max_interval, initial)),
        give_up_after=parsed.get("give_up_after"),
        intervals=tuple(intervals) if intervals else None,
    )


@dataclass(frozen=True, slots=True)
class DeclaredPromises:
    """The declarations of a step about its participant; None where the connection or the action decides."""

    idempotent: bool | None = None
    remembers_rejections: bool | None = None


@dataclass(frozen=True, slots=True)
class ActionTraits:
    """Static facts about the action of a call."""

    connection: str | None = None
    local: bool = True
    idempotent: bool = True
    remembers_rejections: bool = False
    rejects: bool = True
    seals: bool = False
    settle: float | None = None


@dataclass(frozen=True, slots=True)
class BuildContext:
    """The project, and the saga's `defaults` and `publish`."""

    project: ProjectContext
    defaults: ParsedMapping | None
    publish: str = "each"

    def default(self, name: str) -> Any:
        return self.defaults.get(name) if self.defaults else None

    def operation_default(self, role: str) -> Callable[[str], Any]:
        """The defaults of an undo or a confirm, by the name of the field; None where there is none."""
        written = self.default(
            {"compensate": "compensate", "confirmed": "compensate", "confirm": "confirm"}.get(role, "")
        )
        return lambda name: None if written is None else written.get(name)

    def connection_kind(self, connection: str) -> str | None:
        """`sql` or `http`; None if the project's connections are unknown."""
        if self.project.connections is None or connection not in self.project.connections:
            return None
        return str(self.project.connections[connection].get("kind", "sql"))

    def long_form_arguments(self, uses: str, written: Mapping[str, Any], after_commit: bool = False) -> dict[str, Any]:
        """The arguments in the long form, with the default connection if none is given."""
        arguments = dict(written)
        builtin = BUILTINS.get(uses)
        if builtin is None:
            return arguments
        connection = self.default("connection")
        if connection and "connection" not in arguments and builtin.executor in ("sql", "http"):
            fits = self.connection_kind(connection) in (None, builtin.executor)
            if fits and not (builtin.executor == "http" and "url" in arguments):
                arguments["connection"] = connection
        if uses == "sql":
            arguments = _sql_long_form_arguments(arguments)
        elif uses == "http":
            for name, encoded in (("path", encoded_path), ("url", encoded_url)):
                if isinstance(arguments.get(name), str):
                    arguments[name] = encoded(arguments[name])
            facts = self.project.connection_facts(arguments.get("connection"))
            arguments = {**{name: list(facts[name]) for name in STATUS_LISTS if name in facts}, **arguments}
            if isinstance(callback := arguments.get(CALLBACK), Mapping):
                arguments[CALLBACK] = {**callback, CALLBACK_ADDRESS: "${{ step.callback_url }}"}
        elif uses in messaging.EMITTERS:
            arguments = messaging.events_long_form(arguments)
        elif uses == SPARK:
            arguments = spark_long_form(arguments)
            if self.publish == "together" and not after_commit:
                arguments["together"] = True
        arguments = with_checked_paths(arguments, builtin.parameters)
        return _with_bare_expressions(arguments, builtin.parameters)

    def action_traits(
        self, uses: str, arguments: Mapping[str, Any], declared: DeclaredPromises, has_own_queue: bool
    ) -> ActionTraits:
        """The static facts of a call."""
        idempotent, remembers = declared.idempotent, declared.remembers_rejections
        action = self.project.actions.get(uses)
        if action is not None:
            return ActionTraits(
                action.connection,
                idempotent=(action.idempotent and idempotent is not False) or action.connection is not None,
                remembers_rejections=action.remembers_rejections if remembers is None else remembers,
                rejects=action.rejects,
                seals=action.seals,
            )
        builtin = BUILTINS.get(uses)
        if builtin is None:
            # A foreign action, or an unknown one, which the checks report.
            return ActionTraits(
                local=not has_own_queue,
                idempotent=idempotent is not False,
                remembers_rejections=bool(remembers),
                rejects=has_own_queue,
            )
        rejects = may_reject(uses, arguments)
        connection = arguments.get("connection")
        if builtin.executor == "sql":
            return ActionTraits(connection if isinstance(connection, str) else None, rejects=rejects)
        if builtin.executor == "http":
            table = self.project.connection_facts(connection)
            honours = table.get("idempotent", True)
            return ActionTraits(
                idempotent=honours if idempotent is None else idempotent,
                remembers_rejections=table.get("remembers_rejections", False) if remembers is None else remembers,
                rejects=rejects,
                settle=table.get("settle"),
            )
        # The checks report a missing outbox or ledger; the placeholder keeps the step guarded until then.
        if uses == messaging.PUBLISH:
            return ActionTraits((self.project.kafka.outbox if self.project.kafka else None) or "kafka", rejects=rejects)
        if uses == SPARK:
            return ActionTraits((self.project.spark.ledger if self.project.spark else None) or "spark", rejects=rejects)
        # All attempts of a request wait for the reply to one command, so a reply is definite.
        return ActionTraits(remembers_rejections=uses == messaging.REQUEST, rejects=rejects)

    def build_operation(
        self,
        parsed: ParsedMapping,
        *,
        arguments: Mapping[str, Any] | None,
        forward: Mapping[str, Any],
        timeout: float,
        retry: ParsedMapping | None,
        heartbeat: float | None,
        task_queue: str | None,
        declared: DeclaredPromises,
    ) -> Operation:
        """The operation of ``parsed``. ``arguments`` None means those of the forward call, ``forward``, frozen."""
        uses = parsed.get("uses", "")
        queue = parsed.get("task_queue", task_queue)
        facts = self.action_traits(uses, forward if arguments is None else arguments, declared, queue is not None)
        return Operation(
            uses=uses,
            with_=arguments,
            timeout=parsed.get("timeout", timeout),
            heartbeat=allowed_heartbeat(uses, parsed.get("heartbeat", heartbeat)),
            retry=self._retry(uses, parsed.get("retry", retry)),
            task_queue=queue,
            connection=facts.connection,
            local=facts.local,
            idempotent=facts.idempotent,
            remembers_rejections=facts.remembers_rejections and facts.idempotent,
            rejects=facts.rejects,
            seals=facts.seals,
            own_retry=parsed.get("retry") is not None,
        )

    def _retry(self, uses: str, parsed: ParsedMapping | None) -> Retry:
        if parsed is None and uses in (SPARK, RECONCILE):
            return Retry(max_attempts=JOB_ATTEMPTS)
        return build_retry(parsed)


def _with_bare_expressions(arguments: dict[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with each marked expression in its one form, whether it is written bare or in ``${{ }}``."""
    for name, field in schema["properties"].items():
        value = arguments.get(name)
        if EXPRESSION in field and isinstance(value, str | bool):
            text = value if isinstance(value, str) else str(value).lower()
            arguments[name] = wrap(text) if field[EXPRESSION] == "rendered" else unwrap(text)
        elif isinstance(value, Mapping) and marks_expressions(field):
            arguments[name] = _with_bare_expressions(dict(value), field)
    return arguments


def _sql_long_form_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments with `run` as a list of statements. What is next to a list stays there, to be refused."""
    run = arguments.get("run")
    if isinstance(run, str | dict):
        statement = {"sql": run} if isinstance(run, str) else run
        own = {name: arguments.pop(name) for name in OF_A_STATEMENT if name in arguments}
        arguments["run"] = [{**own, **statement}]
    return arguments


def with_checked_paths(value: Any, schema: Any) -> Any:
    """The value, with every expression in a path passed to `path_part`, except one at its beginning.

    The checks allow only a closed list at the begin of a path.
    """
    if isinstance(value, dict):
        return {key: _with_checked_paths_inside(item, schema, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_checked_paths_inside(item, schema, 0) for item in value]
    if not isinstance(value, str) or OPENING not in value or "path" not in code_kinds(schema):
        return value
    try:
        parts = split_template(value)
    except ExpressionError:
        return value  # the checks report it
    texts = []
    for index, part in enumerate(parts):
        if part.expression:
            # The source may end in a comment, which a line break ends.
            texts.append(wrap(f"path_part({part.text.strip()}\n)") if index else wrap(part.text))
        else:
            texts.append(part.text.replace(OPENING, f"${OPENING}"))
    return "".join(texts)


def _with_checked_paths_inside(value: Any, schema: Any, key: str | int) -> Any:
    for inner in element_schemas(schema, key):
        value = with_checked_paths(value, inner)
    return value


# Held events. The guard's transaction of `confirm` releases them and that of `undo` drops them, whatever action runs
# there, so a step that lacks either operation gets one that does nothing else.
NO_OP_ACTIONS = (RELEASE, DROP)


def is_automatic(form: ParsedMapping) -> bool:
    """True for `compensate: auto`."""
    return form.get("uses") == AUTO


def restore_operation(do: Operation, written: Operation) -> Operation:
    """The undo of `compensate: auto`, in the database of ``do``; ``written`` has the author's times and attempts."""
    return replace(
        written,
        uses=RESTORE,
        with_={},
        connection=do.connection,
        local=True,
        idempotent=True,
        rejects=False,
        heartbeat=None,
    )


def with_hold(do: Operation, arguments: Mapping[str, Any], action: Action | None, kind: StepKind) -> Operation:
    """The forward operation with ``holds`` set: events are held only if the step is compensatable.

    The events of a prepared transaction become visible with its commit, so they need no hold.
    """
    declared = action.holds if action is not None else any(map(is_held, events_of(do.uses, arguments)))
    return replace(do, holds=kind == "compensatable" and not do.two_phase) if declared else do


def guard_only_operation(do: Operation, uses: str) -> Operation:
    """An operation without an action, which only runs the guard's transaction in the database of ``do``."""
    return replace(
        do,
        uses=uses,
        with_={},
        heartbeat=None,
        retry=Retry(),
        rejects=False,
        holds=None,
        images=False,
        own_retry=False,
    )


def with_held_event_operations(
    do: Operation, arguments: Mapping[str, Any], compensate: Compensation | None, confirm: Operation | None
) -> tuple[Compensation | None, Operation | None]:
    """The `compensate` and the `confirm` of a step, extended for its held events.

    The release does not block the author's compensation: published events stay, all other effects can be undone.
    """
    if not do.holds:
        return compensate, confirm
    events = events_of(do.uses, arguments) if do.uses in EMITTERS else []
    if compensate is None and events and all(map(is_held, events)):
        compensate = Compensation((guard_only_operation(do, DROP),))
    if confirm is not None:
        return compensate, confirm
    if compensate is not None and compensate.confirmed is None and compensate.alternates[0].uses != DROP:
        compensate = replace(compensate, confirmed=compensate.alternates[0])
    return compensate, guard_only_operation(do, RELEASE)


def reply_probe(do: Operation) -> Probe:
    """The probe that checks for a recorded reply. If no command was written, it prevents a later write."""
    operation = replace(do, uses=REPLY_PROBE, with_={}, timeout=30.0, retry=Retry(), rejects=False, seals=True)
    return Probe(operation)


def has_reply_probe(step: StepDefinition) -> bool:
    """True for a request without a probe by the author."""
    return step.probe is not None and step.probe.operation.uses == REPLY_PROBE


def allowed_heartbeat(uses: str, heartbeat: float | None) -> float | None:
    """No heartbeat for requests: no worker holds such an attempt, so Temporal would time it out."""
    return None if uses == REQUEST else heartbeat


def spark_publication(do: Operation, after_commit: bool) -> tuple[Compensation | None, Operation]:
    """The `compensate` (None after the commit point) and the `confirm` of a `spark` step.

    All of them take the frozen arguments of the forward call, keep their rows in the same database as the step, and
    have the same heartbeat, so that the attempt of a dead worker is soon retried.
    """

    def operation(uses: str) -> Operation:
        return replace(
            do, uses=uses, with_=None, timeout=PUBLISH_TIMEOUT, retry=Retry(), rejects=False, own_retry=False
        )

    compensation = None if after_commit else Compensation((operation(DISCARD),), operation(REVERT))
    return compensation, operation(PUBLISH)


def two_phase_operations(do: Operation) -> tuple[Compensation, Operation]:
    """The `compensate` and the `confirm` of a step whose transaction is prepared; nothing undoes it once committed."""
    rollback, commit = guard_only_operation(do, ROLLBACK), guard_only_operation(do, COMMIT)
    return Compensation((rollback,)), commit
