"""The exit codes of all commands, as docs/reference/cli.md lists them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sagas.errors import RefusedError, SagaError, UsageError

if TYPE_CHECKING:
    from sagas.protocol.saga_view import SagaView

DONE = 0
FAILED = SagaError.exit_code
USAGE = UsageError.exit_code
COMPENSATED = 3
PARKED = 4
RESIDUE = 5
CANCELLED = 6
STILL_RUNNING = 7
DIFFERENCES = 8
"""A command that compares or checks has found differences."""

REFUSED = RefusedError.exit_code
INTERRUPTED = 130
"""Ctrl-C: a command that has started something prints before it exits what keeps running."""


def exit_code(view: SagaView) -> int:
    """The exit code for the view of a saga (cli.md): 7 while something can still happen by itself."""
    from sagas.protocol.payloads import REFUSED_TYPE
    from sagas.protocol.saga_view import FINAL_STATES

    if view.waits_for_a_person:
        return PARKED
    if view.is_unverified and view.state in FINAL_STATES:
        return FAILED
    match view.state:
        case "COMPLETED":
            return DONE
        case "COMPENSATED":
            return CANCELLED if view.reason and view.reason.kind == "cancelled" else COMPENSATED
        case "RESIDUE":
            return RESIDUE
        case "RUNNING" | "COMMITTED" | "COMPENSATING":
            return STILL_RUNNING
        case "FAILED" if view.reason and view.reason.type == REFUSED_TYPE:
            return USAGE
        case _:
            return FAILED
