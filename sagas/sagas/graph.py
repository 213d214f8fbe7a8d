"""The way forward and the way back of a saga as a graph: nodes, edges, and the Mermaid text of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sagas.builtins_spark import SPARK
from sagas.definition.model import Definition, Step

GROUPS: dict[str, str] = {
    "DONE": "done",
    "CONFIRMED": "done",
    "RUNNING": "running",
    "CONFIRMING": "running",
    "COMPENSATING": "running",
    "COMPENSATED": "undone",
    "NOTHING_TO_UNDO": "undone",
    "REJECTED": "failed",
    "FAILED": "failed",
    "UNKNOWN": "failed",
    "PARKED": "parked",
    "SKIPPED": "skipped",
    "PENDING": "pending",
}
"""The colour group of each step state. Of a for_each the group that comes first in URGENCY is shown."""

URGENCY = ("parked", "failed", "running", "pending", "undone", "done", "skipped")
COLOURS = {
    "done": ("#d3f3dc", "#1a7f37"),
    "running": ("#d6e8ff", "#0b62c4"),
    "undone": ("#e3e0f7", "#5e4db2"),
    "failed": ("#ffe0de", "#cf222e"),
    "parked": ("#fff1c2", "#9a6700"),
    "skipped": ("#f0f0f0", "#8c8c8c"),
    "pending": ("#ffffff", "#8c8c8c"),
}
"""Fill and line of each group."""


@dataclass(frozen=True, slots=True)
class Node:
    """A step. ``undo`` names the actions that undo it; ``group`` and ``note`` tell its state in a run."""

    step: Step
    undo: tuple[str, ...]
    group: str | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class SagaGraph:
    """``forward``: from a step to those that need it. ``back``: from the undo of a step to the undo that follows it."""

    definition: Definition
    nodes: tuple[Node, ...]
    forward: tuple[tuple[str, str], ...]
    back: tuple[tuple[str, str], ...]
    state: str | None = None
    used: frozenset[str] = field(default_factory=frozenset)


def build_graph(definition: Definition, story: Mapping[str, Any] | None = None) -> SagaGraph:
    """The graph of a definition; with the `saga show` document of a run, in the state of that run."""
    groups, notes = _states(story) if story else ({}, {})
    nodes = tuple(Node(step, _undo(step), groups.get(step.id), notes.get(step.id, "")) for step in definition.steps)
    forward = tuple((need, step.id) for step in definition.steps for need in step.needs)
    used = frozenset(node.group for node in nodes if node.group)
    return SagaGraph(definition, nodes, forward, _back(definition), story["state"] if story else None, used)


def _undo(step: Step) -> tuple[str, ...]:
    if step.compensate is not None:
        return tuple(one.uses for one in step.compensate.alternates)
    return ("saga",) if step.do.uses == "saga" and step.kind == "compensatable" else ()


def _back(definition: Definition) -> tuple[tuple[str, str], ...]:
    """Reverse needs between the steps that can be undone; the order passes through those that cannot (rule 2)."""
    nearest: dict[str, list[str]] = {}
    edges: list[tuple[str, str]] = []
    for step in definition.steps:
        before: list[str] = []
        for need in step.needs:
            before += [need] if _undo(definition.step(need)) else nearest[need]
        nearest[step.id] = list(dict.fromkeys(before))
        if _undo(step):
            edges += [(step.id, one) for one in nearest[step.id]]
    return tuple(edges)


def _states(story: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    found: dict[str, list[str]] = {}
    for row in story.get("steps") or ():
        found.setdefault(row["step"], []).append(row["state"])
    groups = {id: min((GROUPS[state] for state in states), key=URGENCY.index) for id, states in found.items()}
    notes = {}
    for id, states in found.items():
        counts = {state: states.count(state) for state in dict.fromkeys(states)}
        notes[id] = ", ".join(state if len(states) == 1 else f"{count} {state}" for state, count in counts.items())
    return groups, notes


def mermaid(graph: SagaGraph) -> str:
    """A Mermaid flowchart: solid arrows forward, dotted ones back, the pivot as a hexagon."""
    lines = ["flowchart LR"]
    for node in graph.nodes:
        lines.append(f"  {_id(node.step)}{_shape(node)}")
    for node in graph.nodes:
        if node.undo:
            lines.append(f'  {_id(node.step, "undo_")}(["↩ {_text(undo_title(node))}"])')
    ids = {node.step.id: node.step for node in graph.nodes}
    lines += [f"  {_id(ids[one])} --> {_id(ids[two])}" for one, two in graph.forward]
    lines += [f"  {_id(node.step)} -.- {_id(node.step, 'undo_')}" for node in graph.nodes if node.undo]
    lines += [f"  {_id(ids[one], 'undo_')} -.-> {_id(ids[two], 'undo_')}" for one, two in graph.back]
    undo = ",".join(_id(node.step, "undo_") for node in graph.nodes if node.undo)
    if undo:
        lines += ["  classDef undo stroke-dasharray: 4 3", f"  class {undo} undo"]
    for group in URGENCY:
        if group in graph.used:
            fill, line = COLOURS[group]
            lines.append(f"  classDef {group} fill:{fill},stroke:{line},color:#1f2328")
            lines.append(f"  class {','.join(_id(node.step) for node in graph.nodes if node.group == group)} {group}")
    return "\n".join(lines)


def title(step: Step) -> str:
    """The step's sentence, with what repeats it."""
    return step.name + (" ×n" if step.for_each is not None else "")


def undo_title(node: Node) -> str:
    """What undoes the step, short enough for a picture."""
    return "discard, or take back" if node.step.do.uses == SPARK else " or ".join(node.undo)


def _shape(node: Node) -> str:
    parts = [f"<b>{_text(title(node.step))}</b>", _text(node.step.do.uses)]
    if node.step.pivot:
        parts.append("point of no return")
    if node.note:
        parts.append(_text(node.note))
    words = "<br/>".join(parts)
    return f'{{{{"{words}"}}}}' if node.step.pivot else f'["{words}"]'


def _id(step: Step, prefix: str = "step_") -> str:
    # A prefix, because a step may be called `end` or `class`, which are words of Mermaid.
    return prefix + step.id


def _text(words: str) -> str:
    """Text inside a quoted label; Mermaid takes character codes for what would end it or be read as markup."""
    for character in ("#", '"', "<", ">", "&"):
        words = words.replace(character, f"\0{ord(character)};")
    return words.replace("\0", "#").replace("\n", " ")
