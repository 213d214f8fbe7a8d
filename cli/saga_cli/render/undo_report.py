"""The report of `saga verify-undo` for a terminal."""

from __future__ import annotations

from saga_cli.output import make_console, to_json
from saga_workers.undo_check.problem_lines import problem_lines
from saga_workers.undo_check.undo_report import DIFFERS, NOT_VERIFIED, VERIFIED, UndoReport
from sagas.definition.model import Definition
from sagas.text.shortening import counted

_MARKS = {VERIFIED: ("✔", "green"), DIFFERS: ("✖", "bold red"), NOT_VERIFIED: ("·", "yellow")}


def print_undo_report(definition: Definition, report: UndoReport) -> None:
    """Print the verdict on each step, what is left, and a summary."""
    from rich.text import Text

    out = make_console()
    out.print(Text.assemble((definition.saga, "bold"), f"  {definition.description}".rstrip()))
    shown = f"input ({report.input_source}): {to_json(report.input)}"
    out.print(Text(shown, style="dim"), no_wrap=True, overflow="ellipsis")
    out.print()
    width = max((len(step.step) for step in report.steps), default=0)
    for step in report.steps:
        mark, style = _MARKS[step.result]
        why = f": {step.why}" if step.why else ""
        out.print(Text.assemble((f"{mark} ", style), (step.step.ljust(width), "bold"), f"  {step.result}{why}"))
    for line in problem_lines(report):
        out.print()
        out.print(Text.assemble(("✖ ", "bold red"), line))
    _print_notes(report)
    out.print()
    out.print(Text.assemble(*_summary(report)))


def _print_notes(report: UndoReport) -> None:
    from rich.text import Text

    notes = []
    waived = sorted({f"{row.connection} · {row.difference.table}" for each in report.orders for row in each.left
                     if row.waived})  # fmt: skip
    if waived:
        notes.append(f"left, as undo_leaves allows: {', '.join(waived)}")
    if report.sequences:
        notes.append(f"sequences that have moved on, which no database undoes: {', '.join(report.sequences)}")
    if report.unused_waivers:
        notes.append(f"undo_leaves names what no undo has left: {', '.join(report.unused_waivers)}")
    notes += [f"not compared: {table.connection} · {table.name}: {table.why}" for table in report.hidden]
    if report.other_copies:
        notes.append(
            "copies of other runs, of which this machine cannot tell whether they still run; drop those that do not:"
            f" {', '.join(report.other_copies)}"
        )
    if report.omitted:
        notes.append(f"{counted(report.omitted, 'further order')} not run; a higher --limit runs them")
    if notes:
        out = make_console()
        out.print()
        for note in notes:
            out.print(Text(note, style="dim"))


def _summary(report: UndoReport) -> tuple[tuple[str, str], str]:
    bad = sum(order.leaves_rows for order in report.orders)
    other = sum(order.deviation is not None for order in report.orders)
    ran = counted(len(report.orders), "order")
    skipped = sum(step.result == NOT_VERIFIED for step in report.steps)
    rest = f"; {counted(skipped, 'step')} not verified" if skipped else ""
    if bad or other:
        problems = [
            *([f"{bad} of {ran} do not leave the rows as before"] if bad else []),
            *([f"{other} of {ran} did not run as in `saga simulate`"] if other else []),
        ]
        return ("✖ ", "bold red"), "; ".join(problems) + rest
    if report.verifies_nothing:
        return ("✖ ", "bold red"), "no undo could be verified"
    if not report.has_undo:
        return ("· ", "dim"), "the saga has no undo"
    if not any(step.result == VERIFIED for step in report.steps):
        return ("· ", "yellow"), "nothing was verified, because no step with an undo is run"
    return ("✔ ", "green"), f"{ran}, each leaves the rows as before{rest}"
