"""`saga signal`: answer a saga that waits."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from saga_cli.context import with_locator
from saga_cli.output import echo, print_document, warn
from saga_cli.shared_options import Operator, json_option, operator_name, print_target
from sagas.errors import UsageError


def send_signal(
    saga_id: Annotated[str, typer.Argument(help="the saga's id")],
    name: Annotated[str, typer.Argument(help="the signal's name, as in the `wait` step")],
    data: Annotated[str | None, typer.Option(help="JSON, @file, or - for standard input")] = None,
    reject: Annotated[str | None, typer.Option(help="reject the step, with this reason")] = None,
    as_: Operator = None,
) -> int:
    """Send a signal to a `wait` step. An early signal is kept; the first signal of a name counts."""
    if reject is not None and data is not None:
        raise UsageError("give either --data or --reject")
    if reject is not None and not reject.strip():
        raise UsageError("--reject needs a reason")
    value = json_option(data, "--data")

    async def send(locator, settings) -> dict[str, Any]:
        from saga_workers.intervention_answers import signal

        print_target(settings)
        return await signal(locator, saga_id, name, value, who=operator_name(as_), reject=reject)

    answer = with_locator(send)
    note = answer.pop("note", None)
    print_document(answer, human=lambda: echo(f"{saga_id}: {name} {answer['response']}"))
    if note is not None:
        warn(note)
    return 0
