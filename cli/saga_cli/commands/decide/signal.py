"""`saga signal`: answer a saga that waits."""

from __future__ import annotations

from typing import Annotated

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

    async def send(locator, settings) -> str | None:
        from saga_workers.interventions import signal

        print_target(settings)
        return await signal(locator, saga_id, name, value, who=operator_name(as_), reject=reject)

    why = with_locator(send)
    what = "rejected" if reject is not None else "sent"
    print_document({"id": saga_id, "signal": name, "response": what}, human=lambda: echo(f"{saga_id}: {name} {what}"))
    if why is not None:
        warn(f"not checked whether {saga_id} waits for {name}, as {why}; the next worker receives the signal")
    return 0
