"""The graph of a saga, drawn as Mermaid or SVG: its steps, and the order of their compensations and confirms."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape

from sagas.builtins.spark import SPARK
from sagas.definition.analysis.step_graph import ExecutionPlan
from sagas.definition.model import Definition, Locks, ScheduleTrigger, StepDefinition, checked_entry
from sagas.definition.times import format_duration
from sagas.protocol.saga_view import SagaView
from sagas.text.printable import printable, printable_line
from sagas.text.shortening import join_names, shorten

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
    schedule is a flag.
    """
    lines = ["flowchart LR"]
    if graph.definition.schedule is not None:
        lines.append(f'  schedule>"{_escaped(schedule_text(graph.definition.schedule))}"]')
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
    if graph.definition.schedule is not None:
        lines += [f"  schedule --> {_id(node.step)}" for node in graph.nodes if not node.step.needs]
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


def locks_text(locks: Locks) -> tuple[str, ...]:
    """The keys of the locks, how long the saga waits for them and until when it holds them, in one line each."""
    keys = [str(key) for key in locks.keys] if isinstance(locks.keys, list | tuple) else [str(locks.keys)]
    wait = f"wait {format_duration(locks.wait)}" if locks.wait else "no wait"
    until = "until the commit point" if locks.until == "commit" else "until the end"
    return ("lock " + join_names(keys, MAX_KEYS), f"{wait}, {until}")


def _attributes(step: StepDefinition) -> list[str]:
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
    parts = [f"<b>{_escaped(step_title(step))}</b>", _escaped(step.do.uses), *_attributes(step)]
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


# SVG: steps in layers from left to right, the undo of each step below it with dashed edges that lead back, and its
# confirm above it.
BOX_WIDTH, BOX_HEIGHT, UNDO_HEIGHT = 190, 58, 30
GAP_X, GAP_Y, MARGIN = 64, 34, 24
BESIDE = 12 + UNDO_HEIGHT
"""The height of an undo below its step, or of a confirm above it, with the link between them."""

ROW_HEIGHT = BOX_HEIGHT + BESIDE + GAP_Y
MAX_LETTERS = 26
"""How many characters of a title fit into a box at its font size."""

_STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1f2328 }
.title { font-weight: 600; font-size: 13px }
.small { font-size: 11px; fill: #57606a }
.step { fill: #fff; stroke: #57606a; stroke-width: 1.4 }
.undo { fill: #fff; stroke: #5e4db2; stroke-dasharray: 4 3 }
.forward { fill: none; stroke: #57606a; stroke-width: 1.4 }
.back { fill: none; stroke: #5e4db2; stroke-dasharray: 4 3 }
.confirm { fill: #fff; stroke: #1a7f37; stroke-width: 2 }
.inner { fill: none; stroke: #57606a }
.confirms { fill: none; stroke: #1a7f37; stroke-width: 2 }
"""


def to_svg(graph: SagaGraph, link: Callable[[str], str] | None = None) -> str:
    """The whole drawing, readable on light and dark pages. A step's layer is its longest path from the start.

    ``link``: the address to which a click on the step with an id leads.
    """
    cells = _layout(graph)
    across = 1 + max(layer for layer, _ in cells.values())
    down = max(row for _, row in cells.values()) + 1
    width = 2 * MARGIN + across * BOX_WIDTH + (across - 1) * GAP_X
    above = BESIDE if any(node.confirm for node in graph.nodes) else 0
    locks = locks_text(graph.definition.locks) if graph.definition.locks is not None else ()
    schedule = graph.definition.schedule
    notes = (*((schedule_text(schedule),) if schedule is not None else ()), *locks)
    top = MARGIN + 26 + 16 * len(notes)
    height = top + MARGIN + down * (ROW_HEIGHT + above) - GAP_Y
    boxes = {
        id: (MARGIN + layer * (BOX_WIDTH + GAP_X), top + above + row * (ROW_HEIGHT + above))
        for id, (layer, row) in cells.items()
    }
    heading = graph.definition.saga + (f": {graph.state}" if graph.state else "")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:g}" width="{width}" '
        f'height="{height:g}" role="img" aria-label="{escape(heading, quote=True)}">',
        f"<style>{_STYLE}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto-start-reverse"><path d="M0 0 8 4 0 8Z" fill="context-stroke"/></marker></defs>',
        f'<rect width="{width}" height="{height:g}" fill="#fff"/>',
        f'<text class="title" x="{MARGIN}" y="{MARGIN + 6}">{escape(heading)}</text>',
    ]
    parts += [
        f'<text class="small" x="{MARGIN}" y="{MARGIN + 22 + 16 * row}">{escape(shorten(words, width // 8))}</text>'
        for row, words in enumerate(notes)
    ]
    undoable = {node.step.id for node in graph.nodes if node.undo}
    parts += [_draw_forward_edge(boxes[start], boxes[two]) for start, two in graph.forward]
    parts += [_draw_back_edge(boxes[start], boxes[two]) for start, two in graph.back]
    parts += [_draw_undo_link(boxes[id]) for id in boxes if id in undoable]
    parts += [_draw_confirm_edge(boxes[start], boxes[two]) for start, two in graph.confirms]
    for node in graph.nodes:
        box = _draw_box(node, *boxes[node.step.id])
        parts.append(box if link is None else f'<a href="{escape(link(node.step.id))}">{box}</a>')
    return printable("\n".join([*parts, "</svg>"]))


def _layout(graph: SagaGraph) -> dict[str, tuple[int, float]]:
    """Layer and row of every step. A step is placed near the mean row of its needs, which keeps crossings few."""
    layers: dict[str, int] = {}
    for node in graph.nodes:
        layers[node.step.id] = 1 + max((layers[need] for need in node.step.needs), default=-1)
    columns: dict[int, list[GraphNode]] = {}
    for node in graph.nodes:
        columns.setdefault(layers[node.step.id], []).append(node)
    tallest = max(len(column) for column in columns.values())
    rows: dict[str, float] = {}
    for layer in sorted(columns):
        ordered = sorted(columns[layer], key=lambda node: _average_row(node, rows))
        first = (tallest - len(ordered)) / 2
        for number, node in enumerate(ordered):
            rows[node.step.id] = first + number
    return {id: (layers[id], rows[id]) for id in layers}


def _average_row(node: GraphNode, rows: dict[str, float]) -> float:
    needed = [rows[need] for need in node.step.needs]
    return sum(needed) / len(needed) if needed else 0.0


def _draw_forward_edge(start: tuple[float, float], two: tuple[float, float]) -> str:
    x1, y1 = start[0] + BOX_WIDTH, start[1] + BOX_HEIGHT / 2
    return _draw_curve("forward", x1, y1, two[0] - 2, two[1] + BOX_HEIGHT / 2, GAP_X / 2)


def _draw_back_edge(start: tuple[float, float], two: tuple[float, float]) -> str:
    y = BOX_HEIGHT + 12 + UNDO_HEIGHT / 2
    return _draw_curve("back", start[0], start[1] + y, two[0] + BOX_WIDTH + 2, two[1] + y, -GAP_X / 2)


def _draw_confirm_edge(start: tuple[float, float], two: tuple[float, float]) -> str:
    y = UNDO_HEIGHT / 2 - BESIDE
    return _draw_curve("confirms", start[0] + BOX_WIDTH, start[1] + y, two[0] - 2, two[1] + y, GAP_X / 2)


def _draw_curve(style: str, x1: float, y1: float, x2: float, y2: float, bend: float) -> str:
    path = f"M{x1:g} {y1:g} C{x1 + bend:g} {y1:g} {x2 - bend:g} {y2:g} {x2:g} {y2:g}"
    return f'<path class="{style}" d="{path}" marker-end="url(#tip)"/>'


def _draw_undo_link(box: tuple[float, float]) -> str:
    x, y = box[0] + BOX_WIDTH / 2, box[1] + BOX_HEIGHT
    return f'<path class="back" d="M{x:g} {y:g} V{y + 12:g}"/>'


def _draw_box(node: GraphNode, x: float, y: float) -> str:
    step = node.step
    fill, line = COLOURS[node.group] if node.group else ("#fff", "#1f2328" if step.pivot else "#57606a")
    paint = f'style="fill:{fill};stroke:{line}{";stroke-width:3" if step.pivot else ""}"'
    second = step.do.uses + (" · no return" if step.pivot else "")
    lines = [(shorten(step_title(step), MAX_LETTERS), "title"), (shorten(second, MAX_LETTERS), "small")]
    if not step.pivot:
        lines += [(shorten(words, MAX_LETTERS), "small") for words in _attributes(step)]
    if node.note:
        lines.append((shorten(node.note, MAX_LETTERS), "small"))
    corner = BOX_HEIGHT / 2 if checked_entry(step.id) else 8
    top = y + BOX_HEIGHT / 2 - 8 * (len(lines) - 1) + 4
    parts = [
        f"<g><title>{escape(step.id)}: {escape(step.name)}</title>",
        f'<rect class="step" {paint} x="{x:g}" y="{y:g}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="{corner:g}"/>',
    ]
    if step.savepoint is not None:
        parts += [f'<path class="inner" d="M{inner:g} {y:g} v{BOX_HEIGHT}"/>' for inner in (x + 8, x + BOX_WIDTH - 8)]
    parts += [
        f'<text class="{style}" text-anchor="middle" x="{x + BOX_WIDTH / 2:g}" y="{top + 16 * n:g}">'
        f"{escape(words)}</text>"
        for n, (words, style) in enumerate(lines)
    ]
    if node.confirm:
        over = y - BESIDE
        parts += [
            f'<path class="confirms" d="M{x + BOX_WIDTH / 2:g} {over + UNDO_HEIGHT:g} V{y:g}"/>',
            f'<rect class="confirm" x="{x:g}" y="{over:g}" width="{BOX_WIDTH}" height="{UNDO_HEIGHT}" rx="15"/>',
            f'<text text-anchor="middle" x="{x + BOX_WIDTH / 2:g}" y="{over + UNDO_HEIGHT / 2 + 4:g}">'
            f"✓ {escape(shorten(node.confirm, MAX_LETTERS))}</text>",
        ]
    if node.undo:
        below = y + BOX_HEIGHT + 12
        parts += [
            f'<rect class="undo" x="{x:g}" y="{below:g}" width="{BOX_WIDTH}" height="{UNDO_HEIGHT}" rx="15"/>',
            f'<text text-anchor="middle" x="{x + BOX_WIDTH / 2:g}" y="{below + UNDO_HEIGHT / 2 + 4:g}">'
            f"↩ {escape(shorten(undo_title(node), MAX_LETTERS))}</text>",
        ]
    return "\n".join([*parts, "</g>"])
