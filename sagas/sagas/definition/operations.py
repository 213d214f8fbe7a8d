"""From a written operation to the model: defaults, short forms, and the facts about its action."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sagas import builtins_messaging, builtins_spark
from sagas.builtins import BUILTINS, EXPRESSION, may_reject
from sagas.definition.draft import KafkaHome, SparkHome
from sagas.definition.durations import parse_duration
from sagas.definition.model import Operation, Retry
from sagas.definition.records import Parsed
from sagas.definition.request_operations import without_beats

if TYPE_CHECKING:
    from sagas.actions import Action

_WRAPPED = re.compile(r"\s*\$\{\{(.*)\}\}\s*", re.DOTALL)


def bare(expression: str) -> str:
    """The CEL source without `${{ }}` around it."""
    match = _WRAPPED.fullmatch(expression)
    return (match.group(1) if match else expression).strip()


def wrapped(expression: str) -> str:
    """The CEL source as `${{ … }}`, so that rendering it gives its value."""
    return "${{ " + bare(expression) + " }}"


def build_retry(parsed: Parsed | None) -> Retry:
    """The written retry with the language's defaults for what it leaves out."""
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
class Facts:
    """What is known about a call's action before anything runs."""

    connection: str | None = None
    local: bool = True
    idempotent: bool = True
    rejects: bool = True
    seals: bool = False
    settle: float | None = None


@dataclass(frozen=True, slots=True)
class Environment:
    """What a project knows (actions, connections, Spark, Kafka), and the saga's `defaults` and `publish`."""

    actions: Mapping[str, Action]
    connections: Mapping[str, Mapping[str, Any]] | None
    defaults: Parsed | None
    spark: SparkHome | None = None
    publish: str = "each"
    kafka: KafkaHome | None = None

    def default(self, name: str) -> Any:
        return self.defaults.get(name) if self.defaults else None

    def kind_of(self, connection: str) -> str | None:
        """`sql` or `http`; None when the connections are not known here."""
        if self.connections is None or connection not in self.connections:
            return None
        return str(self.connections[connection].get("kind", "sql"))

    def arguments(self, uses: str, written: Mapping[str, Any], after_commit: bool = False) -> dict[str, Any]:
        """The arguments in their long form, with the default connection where one is missing."""
        arguments = dict(written)
        builtin = BUILTINS.get(uses)
        if builtin is None:
            return arguments
        connection = self.default("connection")
        if connection and "connection" not in arguments and builtin.where in ("sql", "http"):
            fits = self.kind_of(connection) in (None, builtin.where)
            if fits and not (builtin.where == "http" and "url" in arguments):
                arguments["connection"] = connection
        if uses == "sql":
            arguments = _sql_long_form(arguments)
        elif uses in builtins_messaging.EMITTERS:
            arguments = builtins_messaging.long_form(arguments)
        elif uses == builtins_spark.SPARK:
            arguments = builtins_spark.long_form(arguments)
            if self.publish == "together" and not after_commit:
                arguments["together"] = True
        for name, schema in builtin.parameters["properties"].items():
            value = arguments.get(name)
            if EXPRESSION in schema and isinstance(value, str):
                arguments[name] = wrapped(value) if schema[EXPRESSION] == "rendered" else bare(value)
            elif EXPRESSION in schema and isinstance(value, bool):
                arguments[name] = wrapped(str(value).lower())
        return arguments

    def facts(self, uses: str, arguments: Mapping[str, Any], idempotent: bool | None, own_queue: bool) -> Facts:
        """``idempotent`` is what the step says about its participant, None when it says nothing."""
        action = self.actions.get(uses)
        if action is not None:
            honoured = action.idempotent and idempotent is not False
            guarded = action.connection is not None
            return Facts(action.connection, True, honoured or guarded, action.rejects, action.seals)
        builtin = BUILTINS.get(uses)
        if builtin is None:
            # Foreign, or unknown here, which is an error of its own.
            return Facts(None, local=not own_queue, idempotent=idempotent is not False, rejects=own_queue)
        rejects = may_reject(uses, arguments)
        connection = arguments.get("connection")
        if builtin.where == "sql":
            return Facts(connection if isinstance(connection, str) else None, rejects=rejects)
        if builtin.where == "http":
            table = (self.connections or {}).get(connection, {}) if isinstance(connection, str) else {}
            honours = table.get("idempotency") != "none" and table.get("idempotent", True)
            settle = table.get("settle")
            return Facts(
                idempotent=honours if idempotent is None else idempotent,
                rejects=rejects,
                settle=parse_duration(settle) if isinstance(settle, str) else None,
            )
        # Without a home it is an error of its own; the name keeps the step guarded until that is reported.
        if uses == builtins_messaging.PUBLISH:
            return Facts((self.kafka.outbox if self.kafka else None) or "kafka", rejects=rejects)
        if uses == builtins_spark.SPARK:
            return Facts((self.spark.ledger if self.spark else None) or "spark", rejects=rejects)
        return Facts(rejects=rejects)

    def operation(
        self,
        parsed: Parsed,
        *,
        arguments: Mapping[str, Any] | None,
        forward: Mapping[str, Any],
        timeout: float,
        retry: Parsed | None,
        heartbeat: float | None,
        task_queue: str | None,
        idempotent: bool | None,
    ) -> Operation:
        """``arguments`` None: the frozen ones of the forward call, which are ``forward``."""
        uses = parsed.get("uses", "")
        queue = parsed.get("task_queue", task_queue)
        facts = self.facts(uses, forward if arguments is None else arguments, idempotent, queue is not None)
        return Operation(
            uses=uses,
            with_=arguments,
            timeout=parsed.get("timeout", timeout),
            heartbeat=without_beats(uses, parsed.get("heartbeat", heartbeat)),
            retry=self._retry(uses, parsed.get("retry", retry)),
            task_queue=queue,
            connection=facts.connection,
            local=facts.local,
            idempotent=facts.idempotent,
            rejects=facts.rejects,
            seals=facts.seals,
        )

    def _retry(self, uses: str, parsed: Parsed | None) -> Retry:
        if parsed is None and uses in (builtins_spark.SPARK, builtins_spark.RECONCILE):
            return Retry(max_attempts=builtins_spark.JOB_ATTEMPTS)
        return build_retry(parsed)


def _sql_long_form(arguments: dict[str, Any]) -> dict[str, Any]:
    """`run` as a list of statements, whatever the author wrote."""
    run = arguments.get("run")
    beside = {name: arguments.pop(name) for name in ("params", "expect_rows", "rejected") if name in arguments}
    if isinstance(run, str):
        arguments["run"] = [{"sql": run, **beside}]
    elif isinstance(run, dict):
        arguments["run"] = [{**run, **beside}]
    return arguments
