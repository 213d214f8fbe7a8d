"""The table of `saga simulate` as one page that needs nothing but itself."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from saga_cli.output import to_json
from saga_cli.simulation_text import LEGEND, mark
from sagas.definition.model import Definition
from sagas.simulation import FAULTS, Cell

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --good: #1a7f37; --back: #0b62c4; --wait: #9a6700; --bad: #cf222e }
@media (prefers-color-scheme: dark) { :root { --good: #4ac26b; --back: #6cb6ff; --wait: #d4a72c; --bad: #ff7b72 } }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem }
table { border-collapse: collapse; width: 100%; margin: 1rem 0 }
th, td { text-align: left; vertical-align: top; padding: .45rem .6rem; border-bottom: 1px solid var(--line) }
thead th { font-weight: 600; opacity: .75 }
small { display: block; opacity: .75 }
pre { overflow-x: auto; padding: .6rem; border: 1px solid var(--line); border-radius: 6px }
.COMPLETED { color: var(--good) } .COMPENSATED { color: var(--back) } .PARKED { color: var(--wait) }
.residue { color: var(--bad); font-weight: 600 } .never { opacity: .4 }
"""


def page(definition: Definition, input: Any, cells: Sequence[Cell]) -> str:
    """The whole page. Every cell tells what is undone, what waits for a person, and what is left."""
    faults = [fault for fault in FAULTS if any(cell.fault == fault for cell in cells)]
    found = {(cell.step, cell.fault): cell for cell in cells}
    rows = []
    for step in dict.fromkeys(cell.step for cell in cells):
        pivot = definition.pivot is not None and definition.pivot.id == step
        inner = "".join(_cell(found.get((step, fault))) for fault in faults)
        title = escape(step) + ("<small>commit point</small>" if pivot else "")
        rows.append(f'<tr><th scope="row">{title}</th>{inner}</tr>')
    heads = "".join(f'<th scope="col">{escape(fault)}</th>' for fault in faults)
    legend = " &nbsp; ".join(f"{escape(sign)} {escape(words)}" for sign, words, _ in LEGEND)
    bad = sum(bool(cell.residue) for cell in cells)
    verdict = (
        f'<p class="residue">✖ {bad} of {len(cells)} failure points leave something behind</p>'
        if bad
        else f'<p class="COMPLETED">✔ {len(cells)} failure points, nothing is ever left half done</p>'
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(definition.saga)}: every failure point</title><style>{_STYLE}</style></head><body>\n"
        f"<h1>{escape(definition.saga)}</h1>\n<p>{escape(definition.description)}</p>\n{verdict}\n"
        f'<table><thead><tr><th scope="col">step</th>{heads}</tr></thead>\n<tbody>\n'
        + "\n".join(rows)
        + f"\n</tbody></table>\n<p>{legend}</p>\n<h2>Input</h2>\n<pre>{escape(to_json(input, indent=2))}</pre>\n"
        f"<p><small>{escape(definition.digest)}</small></p>\n</body></html>\n"
    )


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return '<td class="never">·</td>'
    notes = []
    if cell.undone:
        notes.append("undone: " + ", ".join(cell.undone))
    notes += [f"{row['step']} ({row['op']}): {', '.join(row['decisions'])}" for row in cell.parked]
    notes += [f"{row['step']}: {row['kind'].replace('_', ' ')}" for row in cell.residue]
    small = "".join(f"<small>{escape(note)}</small>" for note in notes)
    style = "residue" if cell.residue else cell.state
    return f'<td class="{escape(style)}" title="{escape(cell.state)}">{escape(mark(cell))}{small}</td>'
