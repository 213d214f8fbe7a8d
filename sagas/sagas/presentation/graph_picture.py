"""The graph of a saga as an SVG picture, for light and dark pages, wide and narrow ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape

from sagas.definition.model import checked_entry
from sagas.presentation.graph import (
    COLOURS,
    GraphNode,
    SagaGraph,
    locks_text,
    redelivery_texts,
    schedule_text,
    step_attributes,
    step_title,
    undo_title,
)
from sagas.text.printable import printable
from sagas.text.shortening import shorten

BOX_WIDTH, BOX_HEIGHT, PILL_HEIGHT = 190, 58, 30
GAP_X, GAP_Y, MARGIN, LINK = 64, 34, 24, 12
NARROW_MARGIN, NARROW_PILL = 12, 130
MAX_LETTERS = 26
"""How many characters of a title fit into a box at its font size."""

_DARK_COLOURS: Mapping[str, tuple[str, str]] = {
    "done": ("#12261a", "#4ac26b"),
    "running": ("#10233d", "#6cb6ff"),
    "undone": ("#221d3a", "#a89bec"),
    "failed": ("#3a1518", "#ff7b72"),
    "parked": ("#332701", "#d4a72c"),
    "skipped": ("#262626", "#8c8c8c"),
    "pending": ("#161b22", "#8c8c8c"),
}
"""Fill and stroke of each group of states on a dark page."""


def _style(text: str, dim: str, paper: str, line: str, back: str, confirm: str) -> str:
    return f"""
text {{ fill: {text} }} .small {{ fill: {dim} }} .paper {{ fill: {paper} }}
.step, .undo, .confirm {{ fill: {paper} }} .step, .forward, .inner {{ stroke: {line} }} .pivot {{ stroke: {text} }}
.undo, .back {{ stroke: {back} }} .confirm, .confirms {{ stroke: {confirm} }}
"""


def _group_style(colours: Mapping[str, tuple[str, str]]) -> str:
    return "\n".join(f".in-{name} {{ fill: {fill}; stroke: {line} }}" for name, (fill, line) in colours.items())


# No variables of CSS: not every program that shows a picture knows them.
_STYLE = f"""
text {{ font: 12px system-ui, sans-serif }}
.title {{ font-weight: 600; font-size: 13px }} .small {{ font-size: 11px }}
.step {{ stroke-width: 1.4 }} .step.pivot {{ stroke-width: 3 }} .confirm, .confirms {{ stroke-width: 2 }}
.forward {{ fill: none; stroke-width: 1.4 }} .inner, .back, .confirms {{ fill: none }}
.undo, .back {{ stroke-dasharray: 4 3 }}
{_style("#1f2328", "#57606a", "#ffffff", "#57606a", "#5e4db2", "#1a7f37")}{_group_style(COLOURS)}
@media (prefers-color-scheme: dark) {{
{_style("#e6edf3", "#a9b3be", "#161b22", "#a9b3be", "#a89bec", "#4ac26b")}{_group_style(_DARK_COLOURS)}
}}
"""


@dataclass(frozen=True, slots=True)
class _Box:
    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> tuple[float, float]:
        return self.x + self.width / 2, self.y + self.height / 2


@dataclass(frozen=True, slots=True)
class _NodeBoxes:
    """The boxes of a step, of its undo and of its confirm."""

    step: _Box
    undo: _Box
    confirm: _Box


def to_svg(graph: SagaGraph, link: Callable[[str], str] | None = None, *, downward: bool = False) -> str:
    """The whole drawing, from left to right, or ``downward`` for narrow pages. A layer is the longest path to a step.

    ``link``: the address to which a click on the step with an id leads.
    """
    locks = locks_text(graph.definition.locks) if graph.definition.locks is not None else ()
    schedule = graph.definition.schedule
    scheduled = (schedule_text(schedule),) if schedule is not None else ()
    notes = (*scheduled, *redelivery_texts(graph.definition), *locks)
    places, margin = _places(graph, 26 + 16 * len(notes), downward), NARROW_MARGIN if downward else MARGIN
    boxes = [box for place in places.values() for box in (place.step, place.undo)]
    width = margin + max(box.x + box.width for box in boxes)
    height = margin + max(box.y + box.height for box in boxes)
    heading = graph.definition.saga + (f": {graph.state}" if graph.state else "")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" role="img" aria-label="{escape(heading, quote=True)}">',
        f"<style>{_STYLE}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto-start-reverse"><path d="M0 0 8 4 0 8Z" fill="context-stroke"/></marker></defs>',
        f'<rect class="paper" width="{width:g}" height="{height:g}"/>',
        f'<text class="title" x="{margin}" y="{margin + 6}">{escape(shorten(heading, int(width) // 8))}</text>',
    ]
    for row, words in enumerate(notes):
        line = escape(shorten(words, int(width) // 8))
        parts.append(f'<text class="small" x="{margin}" y="{margin + 22 + 16 * row}">{line}</text>')
    parts += [_arrow("forward", places[start].step, places[end].step, downward) for start, end in graph.forward]
    parts += [_arrow("back", places[start].undo, places[end].undo, downward) for start, end in graph.back]
    parts += [_arrow("confirms", places[start].confirm, places[end].confirm, downward) for start, end in graph.confirms]
    for node in graph.nodes:
        box = _draw_node(node, places[node.step.id])
        parts.append(box if link is None else f'<a href="{escape(link(node.step.id))}">{box}</a>')
    return printable("\n".join([*parts, "</svg>"]))


def _places(graph: SagaGraph, top: float, downward: bool) -> dict[str, _NodeBoxes]:
    has_confirm = any(node.confirm for node in graph.nodes)
    places = {}
    for id, (layer, row) in _layout(graph).items():
        if downward:
            x = NARROW_MARGIN + row * (BOX_WIDTH + LINK + NARROW_PILL + GAP_Y)
            y = NARROW_MARGIN + top + layer * (BOX_HEIGHT + GAP_Y)
            beside = x + BOX_WIDTH + LINK
            undo = _Box(beside, y + (32 if has_confirm else 14), NARROW_PILL, PILL_HEIGHT)
            confirm = _Box(beside, y - 4, NARROW_PILL, PILL_HEIGHT)
        else:
            above = LINK + PILL_HEIGHT if has_confirm else 0
            x = MARGIN + layer * (BOX_WIDTH + GAP_X)
            y = MARGIN + top + above + row * (BOX_HEIGHT + LINK + PILL_HEIGHT + GAP_Y + above)
            undo = _Box(x, y + BOX_HEIGHT + LINK, BOX_WIDTH, PILL_HEIGHT)
            confirm = _Box(x, y - LINK - PILL_HEIGHT, BOX_WIDTH, PILL_HEIGHT)
        places[id] = _NodeBoxes(_Box(x, y, BOX_WIDTH, BOX_HEIGHT), undo, confirm)
    return places


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


def _arrow(style: str, start: _Box, end: _Box, downward: bool) -> str:
    """A curve between the sides of two boxes that face each other; dashed ones lead back."""
    (x1, y1), (x2, y2) = start.middle, end.middle
    way = -1 if style == "back" else 1
    if downward:
        # What leads back and what confirms share a column: beside each other.
        shift = {"forward": 0, "back": 30, "confirms": -30}[style]
        x1, x2 = x1 + shift, x2 + shift
        y1, y2 = y1 + way * start.height / 2, y2 - way * (end.height / 2 + 2)
        bend = way * GAP_Y / 2
        path = f"M{x1:g} {y1:g} C{x1:g} {y1 + bend:g} {x2:g} {y2 - bend:g} {x2:g} {y2:g}"
    else:
        x1, x2 = x1 + way * start.width / 2, x2 - way * (end.width / 2 + 2)
        bend = way * GAP_X / 2
        path = f"M{x1:g} {y1:g} C{x1 + bend:g} {y1:g} {x2 - bend:g} {y2:g} {x2:g} {y2:g}"
    return f'<path class="{style}" d="{path}" marker-end="url(#tip)"/>'


def _draw_node(node: GraphNode, place: _NodeBoxes) -> str:
    step, box = node.step, place.step
    second = step.do.uses + (" · no return" if step.pivot else "")
    lines = [(step_title(step), "title"), (second, "small")]
    if not step.pivot:
        lines += [(words, "small") for words in step_attributes(step)]
    if node.note:
        lines.append((node.note, "small"))
    style = "step" + (" pivot" if step.pivot else "") + (f" in-{node.group}" if node.group else "")
    corner = BOX_HEIGHT / 2 if checked_entry(step.id) else 8
    middle, top = box.middle[0], box.middle[1] - 8 * (len(lines) - 1) + 4
    parts = [f"<g><title>{escape(step.id)}: {escape(step.name)}</title>"]
    if node.undo:
        parts.append(_draw_pill(box, place.undo, "undo", "back", f"↩ {undo_title(node)}"))
    if node.confirm:
        parts.append(_draw_pill(box, place.confirm, "confirm", "confirms", f"✓ {node.confirm}"))
    parts.append(_rect(style, box, corner))
    if step.savepoint is not None:
        sides = (box.x + 8, box.x + box.width - 8)
        parts += [f'<path class="inner" d="M{side:g} {box.y:g} v{box.height:g}"/>' for side in sides]
    parts += [_text(shorten(words, MAX_LETTERS), kind, middle, top + 16 * n) for n, (words, kind) in enumerate(lines)]
    return "\n".join([*parts, "</g>"])


def _draw_pill(box: _Box, pill: _Box, style: str, line: str, words: str) -> str:
    """The undo or the confirm of a step, with the line from one middle to the other, which the boxes cover."""
    (x1, y1), (x2, y2) = box.middle, pill.middle
    if pill.x > box.x:
        y1 = y2
    letters = MAX_LETTERS * int(pill.width) // BOX_WIDTH
    return "\n".join(
        [
            f'<path class="{line}" d="M{x1:g} {y1:g} L{x2:g} {y2:g}"/>',
            _rect(style, pill, pill.height / 2),
            _text(shorten(words, letters), "", x2, y2 + 4),
        ]
    )


def _rect(style: str, box: _Box, corner: float) -> str:
    size = f'width="{box.width:g}" height="{box.height:g}" rx="{corner:g}"'
    return f'<rect class="{style}" x="{box.x:g}" y="{box.y:g}" {size}/>'


def _text(words: str, style: str, x: float, y: float) -> str:
    kind = f' class="{style}"' if style else ""
    return f'<text{kind} text-anchor="middle" x="{x:g}" y="{y:g}">{escape(words)}</text>'
