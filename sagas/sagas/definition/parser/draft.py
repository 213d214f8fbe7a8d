"""A parsed saga before its checks: the model together with positions in the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from sagas.definition.analysis.step_graph import StepGraph
from sagas.definition.diagnostics import Positioned
from sagas.definition.model import Definition, Operation, StepDefinition
from sagas.definition.parser.field_types import ParsedMapping
from sagas.definition.parser.yaml_nodes import YamlNode
from sagas.sql_text.dialects import Dialect, dialect_of_url

if TYPE_CHECKING:
    from sagas.actions.registry import Action
    from sagas.expressions.presence import Facts

OperationRole = Literal["do", "compensate", "confirmed", "confirm", "probe", "notify"]
Connections = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class SparkResources:
    """The Spark settings that definitions depend on.

    ``ledger`` is the SQL connection that holds the guard and fence rows of `spark` steps, or None;
    ``catalogs`` are the tables ``[catalogs.*]`` of saga.toml. ``remote``: whether jobs run on a Spark Connect server.
    """

    ledger: str | None = None
    catalogs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    remote: bool = False


def kafka_triggers(top: ParsedMapping) -> list[ParsedMapping]:
    """The Kafka triggers of a saga that could be read."""
    triggers = top.values.get("triggers")
    return (triggers.values.get("kafka") or []) if triggers is not None else []


def schedule_trigger(top: ParsedMapping) -> ParsedMapping | None:
    """The schedule of a saga; None if it has none that could be read."""
    triggers = top.values.get("triggers")
    return triggers.values.get("schedule") if triggers is not None else None


@dataclass(frozen=True, slots=True)
class KafkaResources:
    """The Kafka settings that definitions depend on: ``outbox`` is the SQL connection with the outbox tables."""

    outbox: str | None = None


@dataclass(frozen=True, slots=True)
class ProjectContext:
    """The context in which definitions are checked: the project's Python actions and the settings that they depend on.

    ``connections`` are the facts about ``[connections.*]`` of saga.toml: ``kind``, the scheme of the URL as ``url``
    (None: the URL is a secret that is not here), and of an HTTP service what it declares: ``idempotent``,
    ``remembers_rejections``, ``settle`` (seconds), its ``key_header``, and its statuses, ``done`` and ``rejected``.
    None: unknown, so that nothing is checked there.
    ``task_queue``: that of the project's sagas; None: unknown.
    ``receives_callbacks``: `saga serve` has an address for callbacks; None: unknown.
    ``locks`` is the SQL connection with the tables of semantic locks, if there is one. ``vars`` are the names of
    ``[vars]``; None: unknown.
    """

    actions: Mapping[str, Action] = field(default_factory=dict)
    connections: Connections | None = None
    spark: SparkResources | None = None
    kafka: KafkaResources | None = None
    locks: str | None = None
    vars: tuple[str, ...] | None = None
    receives_callbacks: bool | None = None
    task_queue: str | None = None

    def connection_facts(self, connection: Any) -> Mapping[str, Any]:
        """The facts about a connection as an argument names it; empty if none is known."""
        return (self.connections or {}).get(connection, {}) if isinstance(connection, str) else {}

    def dialect(self, connection: str | None) -> Dialect | None:
        """The dialect of a connection's database; None if it is not known here.

        A connection without a URL is on the embedded PostgreSQL.
        """
        table = (self.connections or {}).get(connection or "")
        if table is None or table.get("kind", "sql") != "sql" or table.get("url", "") is None:
            return None
        return dialect_of_url(table.get("url"))


@dataclass(frozen=True, slots=True)
class OperationDraft:
    """One operation and the mapping it was parsed from."""

    role: OperationRole
    operation: Operation
    parsed: ParsedMapping

    @property
    def position(self) -> Positioned:
        """The position of the action's name."""
        return self.parsed.node_of("uses") if "uses" in self.parsed else self.parsed.node

    @property
    def arguments(self) -> YamlNode | None:
        """The node of `with`; None in the short form."""
        return self.parsed.node_of("with") if "with" in self.parsed else None


@dataclass(frozen=True, slots=True)
class StepDraft:
    """One step; ``after_commit`` is True if it can only run after the commit point, so no failure undoes it."""

    parsed: ParsedMapping
    step: StepDefinition
    operations: tuple[OperationDraft, ...]
    after_commit: bool

    @property
    def id(self) -> str:
        return self.step.id

    @property
    def reads(self) -> bool:
        """True if the step's kind is `read`, so it has no effect."""
        return self.step.kind == "read"

    def retries_without_limit(self, role: OperationRole) -> bool:
        """True if no limit of attempts applies to this operation: the saga has to go on, and nothing says how else."""
        return role == "confirm" or (role == "do" and self.after_commit and self.step.on_failure == "compensate")


@dataclass(frozen=True, slots=True)
class SagaDraft:
    """A whole saga. ``definition`` has no digest yet. ``facts_after``: a cache of the check of missing values, by the
    id of a step, because each expression of a long saga depends on all steps before it.
    """

    file: str
    root: ParsedMapping
    definition: Definition
    steps: tuple[StepDraft, ...]
    graph: StepGraph
    project: ProjectContext
    notify: tuple[OperationDraft, ...] = ()
    steps_by_id: Mapping[str, StepDraft] = field(init=False)
    facts_after: dict[str, Facts] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps_by_id", {step.id: step for step in self.steps})

    @property
    def pivot(self) -> StepDraft | None:
        return next((step for step in self.steps if step.step.pivot), None)
