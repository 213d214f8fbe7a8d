"""The table of `saga simulate` for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from saga_cli.output import console, to_json
from sagas.definition.model import Definition
from sagas.simulation import FAULTS, Cell

HEADS = {"crash after effect": "crash\nafter\neffect", "compensation fails": "undo\nfails"}
STYLES = {"COMPLETED": "green", "COMPENSATED": "blue", "PARKED": "yellow"}


def mark(cell: Cell | None) -> str:
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
    ("✔", "completed", "green"),
    ("↩ n", "compensated, n undone", "blue"),
    ("⏸", "parked: a person decides", "yellow"),
    ("✖ n left", "an effect stays or is missing", "bold red"),
    ("·", "cannot happen", "dim"),
)


def print_cells(definition: Definition, input: Any, cells: Sequence[Cell], *, made_up: bool) -> None:
    """Print the table, what its marks mean, and what deserves a closer look."""
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    out = console()
    out.print(Text.assemble((definition.saga, "bold"), f"  {definition.description}".rstrip()))
    shown = to_json(input)
    words = "made-up input" if made_up else "input"
    out.print(Text(f"{words}: {shown}", style="dim"), no_wrap=True, overflow="ellipsis")
    out.print()
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", show_edge=False, pad_edge=False)
    faults = [fault for fault in FAULTS if any(cell.fault == fault for cell in cells)]
    table.add_column("step", no_wrap=True, vertical="bottom")
    for fault in faults:
        table.add_column(HEADS.get(fault, fault), no_wrap=True, vertical="bottom")
    found = {(cell.step, cell.fault): cell for cell in cells}
    for step in dict.fromkeys(cell.step for cell in cells):
        row = [found.get((step, fault)) for fault in faults]
        pivot = definition.pivot is not None and definition.pivot.id == step
        table.add_row(Text(f"{step} ◆" if pivot else step, style="bold"), *(_cell(cell) for cell in row))
    # A long step id makes the table wider than the window; cut cells would be worse.
    needed = Measurement.get(out, out.options.update(max_width=1000), table).maximum
    out.print(table, width=max(needed, 1), crop=False, no_wrap=True)
    ran = {cell.step.partition("#")[0] for cell in cells}
    idle = [step.id for step in definition.steps if step.id not in ran]
    if idle:
        out.print(Text(f"did not run, or cannot fail: {', '.join(idle)}", style="dim"))
    out.print()
    kinds = {_kind(found.get((step, fault))) for step in {cell.step for cell in cells} for fault in faults}
    legend = [(f"{sign} {words}", style) for sign, words, style in LEGEND if sign in kinds]
    if definition.pivot is not None:
        legend.append(("◆ pivot", "dim"))
    out.print(Text("   ").join(Text(*one) for one in legend))
    _parked(cells)
    _residue(cells)
    _sum(cells)


def _kind(cell: Cell | None) -> str:
    """The sign of the legend that explains a cell."""
    if cell is None:
        return "·"
    if cell.residue:
        return "✖ n left"
    return {"COMPLETED": "✔", "COMPENSATED": "↩ n", "PARKED": "⏸"}.get(cell.state, "")


def _cell(cell: Cell | None) -> Any:
    from rich.text import Text

    if cell is None:
        return Text("·", style="dim")
    return Text(mark(cell), style="bold red" if cell.residue else STYLES.get(cell.state, ""))


def _parked(cells: Sequence[Cell]) -> None:
    """What a person may do, once for each place where a saga can stop."""
    from rich.text import Text

    places: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for cell in cells:
        for row in cell.parked:
            places.setdefault((row["step"], row["op"], tuple(row["decisions"])), []).append(cell.fault)
    if not places:
        return
    out = console()
    out.print()
    out.print(Text("Where a person decides", style="bold"))
    operations = {"do": "", "undo": "undo of ", "confirm": "confirm of "}
    for (step, op, decisions), faults in places.items():
        why = ", ".join(dict.fromkeys(faults))
        out.print(Text.assemble(("⏸ ", "yellow"), f"{operations[op]}{step} ({why}): {', '.join(decisions)}"))


def _residue(cells: Sequence[Cell]) -> None:
    from rich.text import Text

    bad = [cell for cell in cells if cell.residue]
    if not bad:
        return
    out = console()
    out.print()
    out.print(Text("What is left behind", style="bold"))
    for cell in bad:
        for row in cell.residue:
            what = "the effect stays" if row["kind"] == "effect_stays" else "the effect is missing"
            words = f"{cell.step}, {cell.fault}: {cell.state}, but {what}: {row['step']} at {row['system']}"
            out.print(Text.assemble(("✖ ", "bold red"), words))
    out.print(Text("A guarded action, or a participant that honours the idempotency key, leaves nothing.", style="dim"))


def _sum(cells: Sequence[Cell]) -> None:
    from rich.text import Text

    bad = sum(bool(cell.residue) for cell in cells)
    out = console()
    out.print()
    if bad:
        out.print(Text.assemble(("✖ ", "bold red"), f"{bad} of {len(cells)} failure points leave something behind"))
    else:
        out.print(Text.assemble(("✔ ", "green"), f"{len(cells)} failure points, nothing is ever left half done"))
