"""`saga enqueued`: what applications have enqueued in their transactions and is not delivered."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saga_cli.context import load_settings
from saga_cli.exit_codes import DONE
from saga_cli.output import age_text, echo, print_document, print_list, print_table
from saga_cli.own_identity import own_identity
from saga_cli.shared_options import Operator, operator_name, required_reason
from sagas.text.printable import printable_line
from sagas.text.shell import saga_command

if TYPE_CHECKING:
    from collections.abc import Sequence

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["--help", "-h"]},
    help="The starts and signals that applications have enqueued in their transactions.",
)

Connection = Annotated[str | None, typer.Option(help="only the database of this connection")]
_ROW = "the number of the row, as in `saga enqueued list`; a negative one after `--`"
Row = Annotated[int, typer.Argument(help=_ROW)]


@app.command("list")
def list_command(
    connection: Connection = None,
    refused: Annotated[bool, typer.Option("--refused", help="only the refused rows")] = False,
    dropped: Annotated[bool, typer.Option("--dropped", help="only rows that were dropped in the last week")] = False,
    limit: Annotated[int, typer.Option(help="maximum number of rows of each database", min=1)] = 50,
) -> int:
    """List the rows that wait for their delivery, and those that were refused, with the reasons."""
    from saga_activities.enqueued.tables import DROPPED, REFUSED
    from saga_workers.enqueued.row_decisions import list_rows
    from sagas.errors import UsageError

    if refused and dropped:
        raise UsageError("give either --refused or --dropped")
    statuses = (REFUSED,) if refused else (DROPPED,) if dropped else None
    settings = load_settings()
    rows = [row.to_json() for row in asyncio.run(list_rows(settings, connection, statuses, limit))]
    print_list(rows, human=lambda rows: _print_rows(rows, settings.enqueue.delivered_by))
    return DONE


def _print_rows(rows: Sequence[dict[str, Any]], delivered_by: str) -> None:
    """``delivered_by``: the name of the process that delivers rows."""
    from saga_workers.enqueued.stuck_rows import MAX_DELAY

    def waits(row: dict[str, Any]) -> str:
        late = f"is not delivered: perhaps no `saga {delivered_by}` runs, or rows before it are being delivered"
        return late if row["age_seconds"] > MAX_DELAY else "waits for its turn"

    if not rows:
        echo("nothing waits, and nothing was refused")
        return
    cells = [
        (
            row["connection"],
            row["row"],
            printable_line(row["status"]),
            printable_line(_what(row)),
            age_text(row["age_seconds"]),
            printable_line(row["reason"] or waits(row)),
        )
        for row in rows
    ]
    print_table(cells, ("connection", "row", "status", "", "age", "reason"))
    if any(row["status"] == "REFUSED" for row in rows):
        echo("saga enqueued retry ROW    delivers a refused row again; saga enqueued drop ROW --reason …    never")


def _what(row: dict[str, Any]) -> str:
    if row["signal"] is not None:
        return f"signal {row['signal']} to {row['id'] or '?'}"
    return f"start {row['saga'] or '?'}" + (f" {row['id']}" if row["id"] else "")


@app.command("retry")
def retry_command(
    row: Annotated[int | None, typer.Argument(help=_ROW)] = None,
    connection: Connection = None,
    all_refused: Annotated[bool, typer.Option("--all", help="all refused rows")] = False,
) -> int:
    """Deliver a refused or dropped row again, after its cause was removed."""
    from saga_workers.enqueued.row_decisions import retry_refused, retry_row
    from sagas.errors import UsageError
    from sagas.text.shortening import counted

    if (row is None) != all_refused:
        raise UsageError("give either the number of a row or --all", help=saga_command("enqueued", "list"))
    settings = load_settings()
    if row is not None:
        message = asyncio.run(retry_row(settings, connection, row))
        print_document({"row": row, "decision": "retry", "message": message}, human=lambda: echo(message))
        return DONE
    count = asyncio.run(retry_refused(settings, connection))
    message = f"{counted(count, 'refused row')} will be delivered"
    print_document({"rows": count, "decision": "retry", "message": message}, human=lambda: echo(message))
    return DONE


@app.command("drop")
def drop_command(
    row: Row,
    connection: Connection = None,
    reason: Annotated[str | None, typer.Option(help="the reason; kept with the row for a week")] = None,
    as_: Operator = None,
) -> int:
    """Never deliver this row. It is kept for a week, in which `retry` still delivers it."""
    from saga_workers.enqueued.row_decisions import drop_row

    why = required_reason(reason, "it is kept with the row")
    by = operator_name(as_) or own_identity()
    message = asyncio.run(drop_row(load_settings(), connection, row, reason=why, who=by))
    print_document({"row": row, "decision": "drop", "message": message}, human=lambda: echo(message))
    return DONE
