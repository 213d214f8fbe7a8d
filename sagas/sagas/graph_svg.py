"""A saga's graph as SVG: steps in layers from left to right, the undo of each below it, dashed and leading back."""

from __future__ import annotations

from html import escape

from sagas.graph import COLOURS, Node, SagaGraph, title, undo_title

WIDTH, HEIGHT, UNDO = 190, 58, 30
GAP_X, GAP_Y, MARGIN = 64, 34, 24
ROW = HEIGHT + 12 + UNDO + GAP_Y
LETTERS = 26
"""How many letters of a title fit into a box at its font size."""

_STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1f2328 }
.title { font-weight: 600; font-size: 13px }
.small { font-size: 11px; fill: #57606a }
.step { fill: #fff; stroke: #57606a; stroke-width: 1.4 }
.undo { fill: #fff; stroke: #5e4db2; stroke-dasharray: 4 3 }
.forward { fill: none; stroke: #57606a; stroke-width: 1.4 }
.back { fill: none; stroke: #5e4db2; stroke-dasharray: 4 3 }
"""


def svg(graph: SagaGraph) -> str:
    """The whole picture, readable on a light and on a dark page. Layers are longest paths from the start."""
    place = _places(graph)
    across = 1 + max(layer for layer, _ in place.values())
    down = max(row for _, row in place.values()) + 1
    width = 2 * MARGIN + across * WIDTH + (across - 1) * GAP_X
    height = 2 * MARGIN + down * ROW - GAP_Y + 26
    boxes = {id: (MARGIN + layer * (WIDTH + GAP_X), MARGIN + 26 + row * ROW) for id, (layer, row) in place.items()}
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
    undoable = {node.step.id for node in graph.nodes if node.undo}
    parts += [_forward(boxes[one], boxes[two]) for one, two in graph.forward]
    parts += [_back(boxes[one], boxes[two]) for one, two in graph.back]
    parts += [_link(boxes[id]) for id in boxes if id in undoable]
    parts += [_box(node, *boxes[node.step.id]) for node in graph.nodes]
    return "\n".join([*parts, "</svg>"])


def _places(graph: SagaGraph) -> dict[str, tuple[int, float]]:
    """Layer and row of every step: a step stands near the middle of what it needs, so lines cross seldom."""
    layers: dict[str, int] = {}
    for node in graph.nodes:
        layers[node.step.id] = 1 + max((layers[need] for need in node.step.needs), default=-1)
    columns: dict[int, list[Node]] = {}
    for node in graph.nodes:
        columns.setdefault(layers[node.step.id], []).append(node)
    tallest = max(len(column) for column in columns.values())
    rows: dict[str, float] = {}
    for layer in sorted(columns):
        ordered = sorted(columns[layer], key=lambda node: _middle(node, rows))
        first = (tallest - len(ordered)) / 2
        for number, node in enumerate(ordered):
            rows[node.step.id] = first + number
    return {id: (layers[id], rows[id]) for id in layers}


def _middle(node: Node, rows: dict[str, float]) -> float:
    known = [rows[need] for need in node.step.needs]
    return sum(known) / len(known) if known else 0.0


def _forward(one: tuple[float, float], two: tuple[float, float]) -> str:
    x1, y1 = one[0] + WIDTH, one[1] + HEIGHT / 2
    return _curve("forward", x1, y1, two[0] - 2, two[1] + HEIGHT / 2, GAP_X / 2)


def _back(one: tuple[float, float], two: tuple[float, float]) -> str:
    y = HEIGHT + 12 + UNDO / 2
    return _curve("back", one[0], one[1] + y, two[0] + WIDTH + 2, two[1] + y, -GAP_X / 2)


def _curve(style: str, x1: float, y1: float, x2: float, y2: float, bend: float) -> str:
    path = f"M{x1:g} {y1:g} C{x1 + bend:g} {y1:g} {x2 - bend:g} {y2:g} {x2:g} {y2:g}"
    return f'<path class="{style}" d="{path}" marker-end="url(#tip)"/>'


def _link(box: tuple[float, float]) -> str:
    x, y = box[0] + WIDTH / 2, box[1] + HEIGHT
    return f'<path class="back" d="M{x:g} {y:g} V{y + 12:g}"/>'


def _box(node: Node, x: float, y: float) -> str:
    step = node.step
    fill, line = COLOURS[node.group] if node.group else ("#fff", "#1f2328" if step.pivot else "#57606a")
    paint = f'style="fill:{fill};stroke:{line}{";stroke-width:3" if step.pivot else ""}"'
    second = step.do.uses + (" · no return" if step.pivot else "")
    lines = [(_cut(title(step)), "title"), (_cut(second), "small")] + (
        [(_cut(node.note), "small")] if node.note else []
    )
    top = y + HEIGHT / 2 - 8 * (len(lines) - 1) + 4
    parts = [
        f"<g><title>{escape(step.id)}: {escape(step.name)}</title>",
        f'<rect class="step" {paint} x="{x:g}" y="{y:g}" width="{WIDTH}" height="{HEIGHT}" rx="8"/>',
    ]
    parts += [
        f'<text class="{style}" text-anchor="middle" x="{x + WIDTH / 2:g}" y="{top + 16 * n:g}">{escape(words)}</text>'
        for n, (words, style) in enumerate(lines)
    ]
    if node.undo:
        below = y + HEIGHT + 12
        parts += [
            f'<rect class="undo" x="{x:g}" y="{below:g}" width="{WIDTH}" height="{UNDO}" rx="15"/>',
            f'<text text-anchor="middle" x="{x + WIDTH / 2:g}" y="{below + UNDO / 2 + 4:g}">'
            f"↩ {escape(_cut(undo_title(node)))}</text>",
        ]
    return "\n".join([*parts, "</g>"])


def _cut(words: str) -> str:
    return words if len(words) <= LETTERS else words[: LETTERS - 1] + "…"
