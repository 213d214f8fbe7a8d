"""The steps of a file with mistakes: a missing id or action, or wrong `needs`, keep nothing else from being checked.

What is missing gets a placeholder, of which nothing is known. A diagnostic that may follow from it is not news.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sagas.definition.analysis.step_graph import CycleError, StepGraph, build_step_graph
from sagas.definition.diagnostics import Diagnostic, Report
from sagas.definition.parser.field_types import ParsedMapping, quoted_names, suggestion_help
from sagas.definition.parser.yaml_nodes import YamlNode
from sagas.input_limits import MAX_STEPS

_UNKNOWN = "(unknown)"
"""The action of a step without one: no definition can name it."""

_OF_THE_ORDER = "SAGA303"
"""An expression reads a step that does not run before."""


@dataclass(slots=True)
class ReadableSteps:
    """``steps`` have an id of their own and an action. ``incomplete`` have a placeholder instead.

    ``names_missing``: another name may be that of a step. ``order_known``: all `needs` could be read.
    """

    steps: list[ParsedMapping]
    incomplete: list[YamlNode] = field(default_factory=list[YamlNode])
    names_missing: bool = False
    order_known: bool = True

    def is_certain(self, diagnostic: Diagnostic) -> bool:
        """Return whether a check would report this after all other mistakes are corrected."""
        if any(diagnostic.line in _lines(node) for node in self.incomplete):
            return False
        if self.names_missing and diagnostic.message.startswith("there is no step"):
            return False
        return self.order_known or not diagnostic.code.startswith(("SAGA2", _OF_THE_ORDER))

    def graph(self, steps: Sequence[ParsedMapping], report: Report) -> StepGraph:
        """The graph of the steps, without invalid needs, which are reported."""
        by_id = {step.get("id"): step for step in steps}
        for id, step in by_id.items():
            for node in _written_needs(step):
                if isinstance(node.value, str) and node.value not in by_id:
                    self.order_known = False
                    if not self.names_missing:
                        help = suggestion_help(node.value, by_id, f"the steps are {quoted_names(by_id)}")
                        report.add("SAGA201", node, f"`{id}` needs `{node.value}`, which is not a step", help)
            if (needs := step.values.get("needs")) is not None:
                step.values["needs"] = [need for need in needs if need in by_id]
        try:
            return build_step_graph({id: step.values.get("needs") for id, step in by_id.items()})
        except CycleError as error:
            step = by_id[error.steps[0]]
            report.add("SAGA202", step.position_of("needs"), f"steps need each other in a cycle: {error}")
        self.order_known = False
        return build_step_graph(dict.fromkeys(by_id))


def readable_steps(top: ParsedMapping, report: Report) -> ReadableSteps | None:
    """The steps of a saga; None if it has none, or too many. Reports ids that are used twice."""
    if len(top.get("steps", [])) > MAX_STEPS:
        message = f"a saga has at most {MAX_STEPS:,} steps, and this one {len(top.get('steps', [])):,}"
        report.add("SAGA106", top.node_of("steps"), message, "use `for_each`, or nested sagas")
        return None
    result = ReadableSteps([], names_missing=any(not isinstance(node.value, dict) for node in _written_steps(top)))
    first: dict[str, ParsedMapping] = {}
    for number, step in enumerate(top.get("steps", []), 1):
        for name, placeholder in (("id", f"(step {number})"), ("uses", _UNKNOWN)):
            if not step.get(name):
                node = step.node_of(name) if name in step else None
                is_written = node is not None and isinstance(node.value, str) and bool(node.value)
                step.values[name] = node.value if node is not None and is_written else placeholder
                result.names_missing |= name == "id" and not is_written
                result.incomplete.append(step.node)
                step.node = _with_field(step.node, name, step.values[name])
        id = step.get("id")
        if id in first:
            line = first[id].node_of("id").line
            report.add("SAGA108", step.node_of("id"), f"the step id `{id}` is already used in line {line}")
            result.order_known = False
            continue
        first[id] = step
        result.steps.append(step)
    return result if result.steps else None


def _with_field(node: YamlNode, name: str, value: str) -> YamlNode:
    """A copy of the mapping with a field at its own position. Aliases may share the mapping itself."""
    copy = YamlNode({**node.value, name: YamlNode(value, node.line, node.column)}, node.line, node.column)
    copy.key_positions = dict(node.key_positions)
    return copy


def _written_steps(top: ParsedMapping) -> list[YamlNode]:
    node = top.node_of("steps") if "steps" in top else None
    return node.value if node is not None and isinstance(node.value, list) else []


def _written_needs(step: ParsedMapping) -> list[YamlNode]:
    """The nodes under `needs`, which is one id or a list of them."""
    if "needs" not in step:
        return []
    node = step.node_of("needs")
    return node.value if isinstance(node.value, list) else [node]


def _lines(node: YamlNode) -> range:
    return range(node.line, _last_line(node) + 1)


def _last_line(node: YamlNode) -> int:
    parts = node.value.values() if isinstance(node.value, dict) else node.value if isinstance(node.value, list) else ()
    return max((node.line, *map(_last_line, parts)))
