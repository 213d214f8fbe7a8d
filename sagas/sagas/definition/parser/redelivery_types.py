"""The type of `redeliver`: how often, and when, an event starts its saga again that was compensated."""

from __future__ import annotations

from dataclasses import dataclass

from sagas.definition.diagnostics import Report
from sagas.definition.parser.field_types import Duration, Field, ListOf, MappingType, Schema, report_mismatch
from sagas.definition.parser.yaml_nodes import YamlNode

MOST_REDELIVERIES = 100

DEFAULT_WAITS = (10.0, 60.0, 300.0, 1_800.0, 7_200.0)
"""Seconds, for `redeliver: true`."""

REDELIVER = MappingType(
    "`redeliver`",
    (
        Field(
            "intervals",
            ListOf(Duration(zero=True), minimum=1),
            "waits after the first compensation, the second …; after the last nothing is started",
            required=True,
        ),
    ),
)


@dataclass(frozen=True)
class Redelivery:
    """`true`, `false`, or a mapping with the waits; read as the seconds of each wait."""

    def read(self, node: YamlNode, report: Report) -> tuple[float, ...] | None:
        if isinstance(node.value, bool):
            return DEFAULT_WAITS if node.value else ()
        if not isinstance(node.value, dict):
            return report_mismatch(node, report, "true, false or a mapping with `intervals`")
        parsed = REDELIVER.read(node, report)
        waits = None if parsed is None else parsed.values.get("intervals")
        if parsed is None or waits is None or None in waits:
            return None
        if len(waits) > MOST_REDELIVERIES:
            return report_mismatch(parsed.node_of("intervals"), report, f"at most {MOST_REDELIVERIES} waits")
        return tuple(waits)

    def schema(self) -> Schema:
        mapping = REDELIVER.schema()
        mapping["properties"]["intervals"]["maxItems"] = MOST_REDELIVERIES
        return {"anyOf": [{"type": "boolean"}, mapping]}
