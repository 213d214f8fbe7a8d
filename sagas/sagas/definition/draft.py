"""A saga between the file and its Definition: what the checks look at, with the places in the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from sagas.definition.diagnostics import Place
from sagas.definition.graph import Graph
from sagas.definition.model import Definition, Operation, Step
from sagas.definition.records import Parsed
from sagas.definition.source import Node

if TYPE_CHECKING:
    from sagas.actions import Action

Role = Literal["do", "compensate", "confirmed", "confirm", "probe", "notify"]
Connections = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class SparkHome:
    """What a project says about Spark, as far as definitions depend on it.

    ``ledger`` is the SQL connection that keeps the guard and fence rows of `spark` steps, None when there is none;
    ``catalogs`` are the tables ``[catalogs.*]`` of saga.toml.
    """

    ledger: str | None = None
    catalogs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def kafka_triggers(top: Parsed) -> list[Parsed]:
    """The triggers of a saga as they are written, those that could be read."""
    triggers = top.values.get("triggers")
    return (triggers.values.get("kafka") or []) if triggers is not None else []


@dataclass(frozen=True, slots=True)
class KafkaHome:
    """What a project says about Kafka: ``outbox`` is the SQL connection whose tables keep what steps send there."""

    outbox: str | None = None


@dataclass(frozen=True, slots=True)
class OperationDraft:
    """One operation of a step and where it is written."""

    role: Role
    operation: Operation
    parsed: Parsed

    @property
    def place(self) -> Place:
        """Where the action's name stands."""
        return self.parsed.at("uses") if "uses" in self.parsed else self.parsed.node

    @property
    def arguments(self) -> Node | None:
        """The node of `with`; None in the short form."""
        return self.parsed.at("with") if "with" in self.parsed else None


@dataclass(frozen=True, slots=True)
class StepDraft:
    """One step: ``after_commit`` is True where nothing leads backward any more."""

    parsed: Parsed
    step: Step
    operations: tuple[OperationDraft, ...]
    after_commit: bool

    @property
    def id(self) -> str:
        return self.step.id

    @property
    def reads(self) -> bool:
        """True when the step has no effect, whatever else its fields say."""
        return self.step.kind == "read"


@dataclass(frozen=True, slots=True)
class Draft:
    """A whole saga. ``definition`` has no digest yet; ``graph`` is None when the needs are wrong."""

    file: str
    top: Parsed
    definition: Definition
    steps: tuple[StepDraft, ...]
    graph: Graph
    actions: Mapping[str, Action]
    connections: Connections | None = None
    spark: SparkHome | None = None
    kafka: KafkaHome | None = None
    notify: tuple[OperationDraft, ...] = ()
    by_id: Mapping[str, StepDraft] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_id", {step.id: step for step in self.steps})

    @property
    def pivot(self) -> StepDraft | None:
        return next((step for step in self.steps if step.step.pivot), None)
