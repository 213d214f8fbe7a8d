"""What the verbs share that run until they are told to stop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from saga_cli.context import options
from sagas.errors import UsageError

if TYPE_CHECKING:
    from datetime import timedelta


def duration(text: str, option: str) -> timedelta:
    """The value of an option such as ``--grace 30s``. Raises UsageError: it is no duration."""
    from datetime import timedelta

    from sagas.definition.durations import parse_duration

    try:
        return timedelta(seconds=parse_duration(text))
    except ValueError as error:
        raise UsageError(f"{option}: {error}", help=f"for example {option} 30s") from None


def start_log(form: str) -> None:
    """The log of a process that serves, as ``--log-format`` says. Raises UsageError: there is no such form."""
    from saga_workers.logs import configure_logs

    if form not in ("text", "json"):
        raise UsageError(f"--log-format is text or json, not {form}")
    configure_logs(form, debug=options().debug)
