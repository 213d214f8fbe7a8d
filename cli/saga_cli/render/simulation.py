"""The table of `saga simulate` for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from saga_cli.output import make_console, to_json
from sagas.definition.model import Definition
from sagas.presentation.html_page import html_page
from sagas.simulation import COLUMNS, FailurePoint
from sagas.text.printable import printable_line
from sagas.text.shell import saga_command

FAULT_HEADINGS = {"crash after effect": "crash\nafter\neffect", "compensation fails": "undo\nfails"}
STATE_COLORS = {"COMPLETED": "green", "COMPENSATED": "blue", "PARKED": "yellow"}


def mark(cell: FailurePoint | None) -> str:
    """One cell in a few characters."""
    if cell is None:
        return "·"
    if cell.residue:
        return f"✖ {len(cell.residue)} left"
    match cell.state:
        case "COMPLETED":
            return "✔"
        case "COMPENSATED":
            return f"↩ {len(cell.undone)}"
        case "PARKED":
            return "⏸"
    return cell.state


LEGEND = (
    ("✔", "completed: the step is retried until it is done, or passed over, or the request comes too late", "green"),
    ("↩ n", "compensated, n undone", "blue"),
    ("⏸", "parked: an operator decides", "yellow"),
    ("✖ n left", "an effect stays or is missing", "bold red"),
    ("·", "cannot happen", "dim"),
)


def print_summaries(cells: Mapping[str, Sequence[FailurePoint]], needs_input: Mapping[str, str]) -> None:
    """Print a line for each saga: how many failures were simulated, and which of them leave an effect."""
    from rich.text import Text

    out = make_console()
    for saga, each in cells.items():
        leaving = [f"{cell.step} × {cell.fault}" for cell in each if cell.residue]
        sign = ("✖ ", "bold red") if leaving else ("✔ ", "green")
        outcome = f"an effect is left by {', '.join(leaving)}" if leaving else "nothing is left"
        text = f"{len(each)} failures, {outcome}"
        out.print(Text.assemble(sign, (saga, "bold"), f"  {text}"), soft_wrap=True)
    for saga, why in needs_input.items():
        line = Text.assemble(("· ", "dim"), (saga, "bold"), f"  not simulated: {printable_line(why)}; ")
        out.print(line + Text(saga_command("simulate", saga, "--input", "@FILE")), soft_wrap=True)


def print_failure_table(
    definition: Definition,
    input: Any,
    cells: Sequence[FailurePoint],
    usual: Sequence[Mapping[str, Any]],
    *,
    is_sample: bool,
) -> None:
    """Print a table of steps and failures, what its marks mean, and the cells that leave or park something.

    ``usual`` are the steps of the run without a failure.
    """
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    out = make_console()
    out.print(Text.assemble((definition.saga, "bold"), f"  {definition.description}".rstrip()))
    shown = to_json(input)
    words = "sample input" if is_sample else "input"
    out.print(Text(f"{words}: {shown}", style="dim"), no_wrap=True, overflow="ellipsis")
    out.print()
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", show_edge=False, pad_edge=False)
    faults = [fault for fault in COLUMNS if any(cell.fault == fault for cell in cells)]
    table.add_column("step", no_wrap=True, vertical="bottom")
    for fault in faults:
        table.add_column(FAULT_HEADINGS.get(fault, fault), no_wrap=True, vertical="bottom")
    by_place = {(cell.step, cell.fault): cell for cell in cells}
    for step in dict.fromkeys(cell.step for cell in cells):
        row = [by_place.get((step, fault)) for fault in faults]
        pivot = definition.pivot is not None and definition.pivot.id == step
        table.add_row(Text(f"{step} ◆" if pivot else step, style="bold"), *(_text_cell(cell) for cell in row))
    # A long step id makes the table wider than the window; cut cells would be worse.
    needed = Measurement.get(out, out.options.update(max_width=1000), table).maximum
    out.print(table, width=max(needed, 1), crop=False, no_wrap=True)
    ran = {cell.step.partition("#")[0] for cell in cells}
    cut_off = _cut_off(definition, usual)
    for finish, below in cut_off.items():
        when = str((definition.step(finish).do.with_ or {}).get("when")).removeprefix("${{ ").removesuffix(" }}")
        words = f"skipped, because the saga finishes at {finish} (`when: {when}`): {', '.join(below)}"
        out.print(Text(f"{words}; an input for which it is false runs them: --input '{{…}}'", style="dim"))
    named = {step for below in cut_off.values() for step in below} | cut_off.keys()
    idle = [step.id for step in definition.steps if step.id not in ran | named]
    if idle:
        out.print(Text(f"did not run, or cannot fail: {', '.join(idle)}", style="dim"))
    out.print()
    kinds = {_legend_sign(by_place.get((step, fault))) for step in {cell.step for cell in cells} for fault in faults}
    legend = [(f"{sign} {words}", style) for sign, words, style in LEGEND if sign in kinds]
    if definition.pivot is not None:
        legend.append(("◆ pivot", "dim"))
    out.print(Text("   ").join(Text(*entry) for entry in legend))
    _print_parked(cells)
    _print_residue(cells)
    _print_summary(cells)


def _cut_off(definition: Definition, usual: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The steps that the `finish` which has ended the saga has skipped, by its id; empty if there is none."""
    from sagas.definition.analysis.step_graph import ExecutionPlan

    finishes = ExecutionPlan(definition).finishes
    ended = next((row["id"] for row in usual if row["id"] in finishes and row["result"] is True), None)
    skipped = {row["step"] for row in usual if row["state"] == "SKIPPED"}
    below = [step.id for step in definition.steps if ended is not None and step.id in finishes[ended] & skipped]
    return {} if ended is None or not below else {ended: below}


def _legend_sign(cell: FailurePoint | None) -> str:
    """The sign of the legend that explains a cell."""
    if cell is None:
        return "·"
    if cell.residue:
        return "✖ n left"
    return {"COMPLETED": "✔", "COMPENSATED": "↩ n", "PARKED": "⏸"}.get(cell.state, "")


def _text_cell(cell: FailurePoint | None) -> Any:
    from rich.text import Text

    if cell is None:
        return Text("·", style="dim")
    return Text(mark(cell), style="bold red" if cell.residue else STATE_COLORS.get(cell.state, ""))


def _print_parked(cells: Sequence[FailurePoint]) -> None:
    """Print what an operator may decide, once for each step where a saga can stop."""
    from rich.text import Text

    stops: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for cell in cells:
        for row in cell.parked:
            stops.setdefault((row["step"], row["op"], tuple(row["decisions"])), []).append(cell.fault)
    if not stops:
        return
    out = make_console()
    out.print()
    out.print(Text("Where an operator decides", style="bold"))
    operations = {"do": "", "undo": "undo of ", "confirm": "confirm of "}
    for (step, op, decisions), faults in stops.items():
        why = ", ".join(dict.fromkeys(faults))
        out.print(Text.assemble(("⏸ ", "yellow"), f"{operations[op]}{step} ({why}): {', '.join(decisions)}"))


def _print_residue(cells: Sequence[FailurePoint]) -> None:
    from rich.text import Text

    bad = [cell for cell in cells if cell.residue]
    if not bad:
        return
    out = make_console()
    out.print()
    out.print(Text("Residues", style="bold"))
    for cell in bad:
        for row in cell.residue:
            words = f"{cell.step}, {cell.fault}: {cell.state}, but {describe_residue(row)}"
            out.print(Text.assemble(("✖ ", "bold red"), words))
    out.print(Text("Guarded actions, and participants that honour the idempotency key, leave no residue.", style="dim"))


def describe_residue(row: Mapping[str, Any]) -> str:
    """A residue of a simulated run, as a clause."""
    what = "the effect stays" if row["kind"] == "effect_stays" else "the effect is missing"
    return f"{what}: {row['step']} at {row['system']}"


def _print_summary(cells: Sequence[FailurePoint]) -> None:
    from rich.text import Text

    sign, style, text = summary(cells)
    out = make_console()
    out.print()
    out.print(Text.assemble((f"{sign} ", "bold red" if style == "residue" else STATE_COLORS[style]), text))


def summary(cells: Sequence[FailurePoint]) -> tuple[str, str, str]:
    """A mark, a style and a sentence. A parked saga leaves what an operator decides, so it is not among the others."""
    bad, parked = sum(bool(cell.residue) for cell in cells), sum(cell.state == "PARKED" for cell in cells)
    points = f"of {len(cells)} failure points"
    if bad:
        waiting = f", {parked} wait for an operator" if parked else ""
        return "✖", "residue", f"{bad} {points} leave a residue{waiting}"
    if parked:
        return "⏸", "PARKED", f"{parked} {points} wait for an operator, the others leave no residue"
    return "✔", "COMPLETED", f"{len(cells)} failure points, none leaves a residue"


def failure_table_page(definition: Definition, input: Any, cells: Sequence[FailurePoint]) -> str:
    """The whole page. Every cell shows what is undone, what waits for an operator, and what is left."""
    body = (
        f"<h1>{escape(definition.saga)}</h1>\n<p>{escape(definition.description)}</p>\n"
        f"{failure_table(definition, cells)}\n<h2>Input</h2>\n<pre>{escape(to_json(input, indent=2))}</pre>\n"
        f"<p><small>{escape(definition.digest)}</small></p>"
    )
    return html_page(f"{definition.saga}: every failure point", body)


def failure_table(
    definition: Definition, cells: Sequence[FailurePoint], link: Callable[[str], str] | None = None
) -> str:
    """The table as HTML, with its verdict and its legend. ``link``: the address of what is told of a step."""
    faults = [fault for fault in COLUMNS if any(cell.fault == fault for cell in cells)]
    by_place = {(cell.step, cell.fault): cell for cell in cells}
    rows = []
    for step in dict.fromkeys(cell.step for cell in cells):
        pivot = definition.pivot is not None and definition.pivot.id == step
        inner = "".join(_html_cell(by_place.get((step, fault))) for fault in faults)
        name = escape(step) if link is None else f'<a href="{escape(link(step))}">{escape(step)}</a>'
        title = name + ("<small>commit point</small>" if pivot else "")
        rows.append(f'<tr><th scope="row">{title}</th>{inner}</tr>')
    heads = "".join(f'<th scope="col">{escape(fault)}</th>' for fault in faults)
    legend = " &nbsp; ".join(f"{escape(sign)} {escape(words)}" for sign, words, _ in LEGEND)
    sign, style, text = summary(cells)
    return (
        f'<p class="{style}">{sign} {text}</p>\n<table><thead><tr><th scope="col">step</th>{heads}</tr></thead>\n'
        f"<tbody>\n{chr(10).join(rows)}\n</tbody></table>\n<p>{legend}</p>"
    )


def _html_cell(cell: FailurePoint | None) -> str:
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
