"""Finds the inputs of Spark jobs, of their checks and of reconciliations, and what a job writes, in a definition."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sagas.builtins.spark import RECONCILE, SPARK
from sagas.definition.diagnostics import Positioned
from sagas.definition.parser.draft import OperationDraft, SagaDraft
from sagas.definition.parser.yaml_nodes import YamlNode, children_of


@dataclass(frozen=True, slots=True)
class WrittenInput:
    """One source of rows: its step and its fields."""

    step: str
    fields: dict[str, YamlNode]

    def text(self, field: str) -> str | None:
        """The text of a field; None if it is missing, no text, or computed."""
        return literal_text(self.fields.get(field))

    @property
    def columns(self) -> list[tuple[str, Positioned]]:
        """The columns that it names itself, not in SQL, with their places."""
        listed, where = self.fields.get("columns"), self.fields.get("where")
        columns: list[tuple[str, Positioned]] = []
        for node in listed.value if listed is not None and isinstance(listed.value, list) else ():
            if (name := literal_text(node)) is not None:
                columns.append((name, node))
        if where is not None:
            columns += [(name, where.key_position(name)) for name in children_of(where) if "${{" not in name]
        return columns

    @property
    def conditions(self) -> list[tuple[str, list[Any], Positioned]]:
        """The columns of a mapping `where` with the values that are not computed, and the place of these."""
        where = self.fields.get("where")
        conditions = []
        for name, node in () if where is None else children_of(where).items():
            values = [each.value for each in (node.value if isinstance(node.value, list) else [node])]
            literals = [value for value in values if not isinstance(value, dict | list) and "${{" not in str(value)]
            if "${{" not in name and literals:
                conditions.append((name, literals, node))
        return conditions


def literal_text(node: YamlNode | None) -> str | None:
    """The text of a node; None if it is not text or has an expression."""
    return node.value if node is not None and isinstance(node.value, str) and "${{" not in node.value else None


def spark_inputs(draft: SagaDraft) -> Iterator[WrittenInput]:
    """All inputs of the Spark steps of a saga."""
    for step in draft.steps:
        for operation in step.operations:
            for node in _inputs(operation):
                if isinstance(node.value, dict):
                    yield WrittenInput(step.id, children_of(node))


def _inputs(operation: OperationDraft) -> Iterator[YamlNode]:
    given = children_of(operation.arguments)
    match operation.operation.uses:
        case str() as uses if uses == SPARK:
            yield from children_of(given.get("inputs")).values()
            audit = given.get("audit")
            for check in audit.value if audit is not None and isinstance(audit.value, list) else ():
                for kind, side in (("relationships", "to"), ("reconcile", "with")):
                    if (node := children_of(children_of(check).get(kind)).get(side)) is not None:
                        yield node
        case str() as uses if uses == RECONCILE:
            yield from (given[side] for side in ("left", "right") if side in given)


def spark_outputs(draft: SagaDraft) -> Iterator[tuple[str, dict[str, YamlNode]]]:
    """The id of each Spark step with the fields of each of its outputs."""
    for step in draft.steps:
        for operation in step.operations:
            if operation.operation.uses == SPARK:
                given = children_of(operation.arguments)
                outputs = [given.get("output"), *children_of(given.get("outputs")).values()]
                yield from ((step.id, children_of(output)) for output in outputs if output is not None)
