"""The exit codes of all commands, as docs/reference/cli.md lists them."""

from __future__ import annotations

from sagas.errors import RefusedError, SagaError, UsageError

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
