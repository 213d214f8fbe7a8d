"""The graph of a saga: its steps, and the order of their compensations and confirms; drawn as Mermaid."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from sagas.builtins.spark import SPARK
from sagas.definition.analysis.step_graph import ExecutionPlan
from sagas.definition.model import Definition, Locks, ScheduleTrigger, StepDefinition, checked_entry
from sagas.definition.times import format_duration
from sagas.protocol.saga_view import SagaView
from sagas.text.printable import printable_line
from sagas.text.shortening import join_names

STATE_GROUPS: dict[str, str] = {
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
"""The colour group of each step state. A `for_each` step shows its first group in GROUP_PRIORITY."""

GROUP_PRIORITY = ("parked", "failed", "running", "pending", "undone", "done", "skipped")
COLOURS = {
    "done": ("#d3f3dc", "#1a7f37"),
    "running": ("#d6e8ff", "#0b62c4"),
    "undone": ("#e3e0f7", "#5e4db2"),
    "failed": ("#ffe0de", "#cf222e"),
    "parked": ("#fff1c2", "#9a6700"),
    "skipped": ("#f0f0f0", "#8c8c8c"),
    "pending": ("#ffffff", "#8c8c8c"),
}
"""Fill and stroke of each group."""

MAX_KEYS = 3
"""Keys of `locks` that are named."""

MAX_WAITS = 5
"""Waits of `redeliver` that are named."""


@dataclass(frozen=True, slots=True)
class GraphNode:
    """A step. ``undo`` names the actions that undo it, ``confirm`` what confirms it after the commit point.

    ``group`` and ``note`` describe its state in a run.
    """

    step: StepDefinition
    undo: tuple[str, ...]
    confirm: str | None = None
    group: str | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class SagaGraph:
    """``forward``: edges from a step to the steps that need it. ``back``: from an undo to the next undo.

    ``confirms``: edges from the confirm of a step to the next confirm; one of a step after the commit point follows its
    own step. ``locked``: the steps before which the locks are taken.
    """

    definition: Definition
    nodes: tuple[GraphNode, ...]
    forward: tuple[tuple[str, str], ...]
    back: tuple[tuple[str, str], ...]
    confirms: tuple[tuple[str, str], ...] = ()
    locked: tuple[str, ...] = ()
    state: str | None = None
    used_groups: frozenset[str] = field(default_factory=frozenset)


def build_saga_graph(definition: Definition, view: SagaView | None = None) -> SagaGraph:
    """The graph of a definition; with the view of a run, in the state of that run."""
    groups, notes = _group_by_step(view) if view else ({}, {})
    nodes = tuple(
        GraphNode(
            step,
            _undo_actions(step),
            _confirm_label(step),
            groups.get(step.id),
            notes.get(step.id, ""),
        )
        for step in definition.steps
    )
    forward = tuple((need, step.id) for step in definition.steps for need in step.needs)
    used = frozenset(node.group for node in nodes if node.group)
    confirmed = ExecutionPlan(definition).to_confirm
    return SagaGraph(
        definition,
        nodes,
        forward,
        back=tuple((later, earlier) for earlier, later in _order(definition, lambda step: bool(_undo_actions(step)))),
        confirms=_order(definition, lambda step: step.id in confirmed),
        locked=_locked_steps(definition),
        state=view.state if view else None,
        used_groups=used,
    )


def _confirm_label(step: StepDefinition) -> str | None:
    """Return what confirms the step: an action of the user; a Spark step publishes."""
    if step.confirm is None:
        return None
    return "publish" if step.do.uses == SPARK else step.confirm.uses


def _undo_actions(step: StepDefinition) -> tuple[str, ...]:
    if step.compensate is not None:
        return tuple(alternate.uses for alternate in step.compensate.alternates)
    return ("saga",) if step.do.uses == "saga" and step.kind == "compensatable" else ()


def _order(definition: Definition, is_part: Callable[[StepDefinition], bool]) -> tuple[tuple[str, str], ...]:
    """The needs between the steps that take part, also through those that do not (rules 2 and 13)."""
    nearest: dict[str, list[str]] = {}
    edges: list[tuple[str, str]] = []
    for step in definition.steps:
        before: list[str] = []
        for need in step.needs:
            before += [need] if is_part(definition.step(need)) else nearest[need]
        nearest[step.id] = list(dict.fromkeys(before))
        if is_part(step):
            edges += [(id, step.id) for id in nearest[step.id]]
    return tuple(edges)


def _locked_steps(definition: Definition) -> tuple[str, ...]:
    if definition.locks is None:
        return ()
    if definition.locks.from_ is not None:
        return (definition.locks.from_,)
    return tuple(step.id for step in definition.steps if not step.needs)


def _group_by_step(view: SagaView) -> tuple[dict[str, str], dict[str, str]]:
    texts: dict[str, list[str]] = {}
    for row in view.steps:
        texts.setdefault(row.step, []).append(row.state)
    groups = {
        id: min((STATE_GROUPS[state] for state in states), key=GROUP_PRIORITY.index) for id, states in texts.items()
    }
    notes = {}
    for id, states in texts.items():
        counts = {state: states.count(state) for state in dict.fromkeys(states)}
        notes[id] = ", ".join(state if len(states) == 1 else f"{count} {state}" for state, count in counts.items())
    return groups, notes


def to_mermaid(graph: SagaGraph) -> str:
    """A Mermaid flowchart: solid arrows forward, dotted arrows back, thick arrows for confirms.

    The pivot is a hexagon, a savepoint has two borders, a check is a parallelogram, the locks are a cylinder, and the
    schedule, and an event that starts the saga again after a compensation, are flags.
    """
    lines = ["flowchart LR"]
    if graph.definition.schedule is not None:
        lines.append(f'  schedule>"{_escaped(schedule_text(graph.definition.schedule))}"]')
    again = redelivery_texts(graph.definition)
    lines += [f'  again_{number}>"{_escaped(words)}"]' for number, words in enumerate(again)]
    if graph.definition.locks is not None:
        keys = "<br/>".join(_escaped(words) for words in locks_text(graph.definition.locks))
        lines.append(f'  locks[("{keys}")]')
    for node in graph.nodes:
        lines.append(f"  {_id(node.step)}{_shape(node)}")
    for node in graph.nodes:
        if node.undo:
            lines.append(f'  {_id(node.step, "undo_")}(["↩ {_escaped(undo_title(node))}"])')
    for node in graph.nodes:
        if node.confirm:
            lines.append(f'  {_id(node.step, "confirm_")}(["✓ {_escaped(node.confirm)}"])')
    ids = {node.step.id: node.step for node in graph.nodes}
    first = [_id(node.step) for node in graph.nodes if not node.step.needs]
    if graph.definition.schedule is not None:
        lines += [f"  schedule --> {step}" for step in first]
    lines += [f"  again_{number} -.-> {step}" for number in range(len(again)) for step in first]
    lines += [f"  locks --> {_id(ids[id])}" for id in graph.locked]
    lines += [f"  {_id(ids[start])} --> {_id(ids[two])}" for start, two in graph.forward]
    lines += [f"  {_id(node.step)} -.- {_id(node.step, 'undo_')}" for node in graph.nodes if node.undo]
    lines += [f"  {_id(ids[start], 'undo_')} -.-> {_id(ids[two], 'undo_')}" for start, two in graph.back]
    lines += [f"  {_id(node.step)} === {_id(node.step, 'confirm_')}" for node in graph.nodes if node.confirm]
    lines += [f"  {_id(ids[start], 'confirm_')} ==> {_id(ids[two], 'confirm_')}" for start, two in graph.confirms]
    undo = ",".join(_id(node.step, "undo_") for node in graph.nodes if node.undo)
    if undo:
        lines += ["  classDef undo stroke-dasharray: 4 3", f"  class {undo} undo"]
    for group in GROUP_PRIORITY:
        if group in graph.used_groups:
            fill, line = COLOURS[group]
            lines.append(f"  classDef {group} fill:{fill},stroke:{line},color:#1f2328")
            lines.append(f"  class {','.join(_id(node.step) for node in graph.nodes if node.group == group)} {group}")
    return "\n".join(lines)


def step_title(step: StepDefinition) -> str:
    """The step's name, marked if `for_each` repeats it."""
    return step.name + (" ×n" if step.for_each is not None else "")


def undo_title(node: GraphNode) -> str:
    """Return what undoes the step, short enough for a diagram."""
    return "discard, or revert" if node.step.do.uses == SPARK else " or ".join(node.undo)


def schedule_text(schedule: ScheduleTrigger) -> str:
    """The times at which sagas start, in one line."""
    return f"⏰ {schedule.cron}, {schedule.timezone}"


def redelivery_texts(definition: Definition) -> tuple[str, ...]:
    """The events that start the saga again after a compensation, in one line for each topic."""
    return tuple(
        f"↻ {trigger.topic}, again after {join_names(list(map(format_duration, trigger.redeliver)), MAX_WAITS)}"
        for trigger in definition.triggers
        if trigger.redeliver
    )


def locks_text(locks: Locks) -> tuple[str, ...]:
    """The keys of the locks, how long the saga waits for them and until when it holds them, in one line each."""
    keys = [str(key) for key in locks.keys] if isinstance(locks.keys, list | tuple) else [str(locks.keys)]
    wait = f"wait {format_duration(locks.wait)}" if locks.wait else "no wait"
    until = "until the commit point" if locks.until == "commit" else "until the end"
    return ("lock " + join_names(keys, MAX_KEYS), f"{wait}, {until}")


def step_attributes(step: StepDefinition) -> list[str]:
    """Return what a step is besides its action, in words for a diagram."""
    words = ["point of no return"] if step.pivot else []
    if step.do.uses == "finish":
        words.append("may complete the saga")
    if step.savepoint is not None:
        wait = f", wait {format_duration(step.savepoint.wait)}" if step.savepoint.wait else ""
        words.append(f"savepoint, {step.savepoint.attempts} runs{wait}")
    return words


def _shape(node: GraphNode) -> str:
    step = node.step
    parts = [f"<b>{_escaped(step_title(step))}</b>", _escaped(step.do.uses), *step_attributes(step)]
    if node.note:
        parts.append(_escaped(node.note))
    words = "<br/>".join(parts)
    if step.pivot:
        return f'{{{{"{words}"}}}}'
    if step.savepoint is not None:
        return f'[["{words}"]]'
    return f'[/"{words}"/]' if checked_entry(step.id) else f'["{words}"]'


def _id(step: StepDefinition, prefix: str = "step_") -> str:
    # The prefix prevents clashes with keywords of Mermaid: a step may be called `end` or `class`.
    checked = checked_entry(step.id)
    return prefix + step.id if checked is None else "check_" + checked


def _escaped(words: str) -> str:
    """Text for a quoted label: what would end it, or be markup, a directive or a formula, becomes a character code."""
    return re.sub(r"[#\"<>&`%{}$\\]", lambda match: f"#{ord(match.group())};", printable_line(words.replace("\n", " ")))
