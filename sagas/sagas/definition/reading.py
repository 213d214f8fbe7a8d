"""From the text of one file to a checked saga: read, build, check, digest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from sagas.definition.build import build_draft
from sagas.definition.checks import check_draft
from sagas.definition.diagnostics import Diagnostic, Report
from sagas.definition.digest import digest_of
from sagas.definition.draft import Connections, Draft, KafkaHome, SparkHome
from sagas.definition.fields import TOP
from sagas.definition.graph import CycleError, Graph, build_graph
from sagas.definition.records import Parsed
from sagas.definition.shapes import did_you_mean, names
from sagas.definition.source import Node, load

if TYPE_CHECKING:
    from sagas.actions import Action


def parse_draft(
    text: str,
    file: str,
    actions: Mapping[str, Action],
    connections: Connections | None,
    spark: SparkHome | None = None,
    kafka: KafkaHome | None = None,
) -> tuple[Draft | None, list[Diagnostic]]:
    """The saga in ``text`` with its places in the file; None when a diagnostic is an error."""
    report = Report(file)
    draft = _draft(text, report, actions, connections, spark, kafka)
    if draft is not None:
        check_draft(draft, report)
    if draft is None or report.failed:
        return None, report.diagnostics
    definition = draft.definition
    return replace(draft, definition=replace(definition, digest=digest_of(definition))), report.diagnostics


def _draft(
    text: str,
    report: Report,
    actions: Mapping[str, Action],
    connections: Connections | None,
    spark: SparkHome | None,
    kafka: KafkaHome | None,
) -> Draft | None:
    root = load(text, report)
    if root is None:
        return None
    top = TOP.read(root, report)
    if top is None:
        return None
    steps: list[Parsed] = top.get("steps", [])
    usable = [step for step in steps if step.get("id") and step.get("uses")]
    if not usable or len(usable) < len(steps):
        return None
    graph = _graph(usable, report)
    return build_draft(report.file, top, graph, actions, connections, spark, kafka) if graph else None


def _graph(steps: list[Parsed], report: Report) -> Graph | None:
    """The graph of the steps; None when ids or needs are wrong, which is then reported."""
    first: dict[str, Parsed] = {}
    sound = True
    for step in steps:
        id = step.get("id")
        if id in first:
            line = first[id].at("id").line
            report.add("SAGA108", step.at("id"), f"the step id `{id}` is already used in line {line}")
            sound = False
        else:
            first[id] = step
    for id, step in first.items():
        for node in _written_needs(step):
            if isinstance(node.value, str) and node.value not in first:
                help = did_you_mean(node.value, first, f"Steps are {names(first)}.")
                report.add("SAGA201", node, f"`{id}` needs `{node.value}`, which is no step", help)
                sound = False
    if not sound:
        return None
    try:
        return build_graph({id: step.values.get("needs") for id, step in first.items()})
    except CycleError as error:
        step = first[error.steps[0]]
        report.add("SAGA202", step.place("needs"), f"steps need each other in a circle: {error}")
        return None


def _written_needs(step: Parsed) -> list[Node]:
    """The nodes under `needs`, which is one id or a list of them."""
    if "needs" not in step:
        return []
    node = step.at("needs")
    return node.value if isinstance(node.value, list) else [node]
