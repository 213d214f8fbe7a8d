"""Options that several commands share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saga_cli.context import global_options, target_line
from saga_cli.output import warn
from sagas.errors import UsageError
from sagas.text.printable import printable_json

if TYPE_CHECKING:
    from saga_workers.client import Client
    from saga_workers.views.saga_list import SagaFilter
    from sagas.settings import Settings

Operator = Annotated[
    str | None,
    typer.Option("--as", help="name of the operator; default: SAGA_USER, else the client's identity: user@machine"),
]

Yes = Annotated[bool, typer.Option("--yes", "-y", help="do not ask for confirmation")]


def operator_name(given: str | None) -> str | None:
    """``--as``, else SAGA_USER, else None: then the identity of the Temporal client is recorded."""
    return given or os.environ.get("SAGA_USER") or None


def print_target(settings: Settings) -> None:
    """Print where something is about to change, unless it is the embedded stack."""
    if not settings.temporal.embedded:
        warn(target_line(settings))


def required_reason(text: str | None, why: str) -> str:
    """``--reason`` without outer blanks. Raises UsageError, with ``why`` it is needed, if nothing remains."""
    if text is None or not text.strip():
        raise UsageError(f"--reason is missing: {why}", help="--reason TEXT")
    return text.strip()


def json_option(text: str | None, option: str) -> Any:
    """The JSON value of an option, or the content of ``@file``. Raises UsageError: it is not JSON that a saga takes."""
    if text is None:
        return None
    from saga_cli.option_texts import parse_json
    from sagas.protocol.size_limits import MAX_PAYLOAD_BYTES, size_problem
    from sagas.text.exact_json import encode_json
    from sagas.text.json_values import json_problem

    value = parse_json(text, option)
    if (problem := json_problem(value)) is not None:
        raise UsageError(f"{option} is not valid: {problem}")
    if (size := len(encode_json(value))) > MAX_PAYLOAD_BYTES:
        raise UsageError(size_problem(option, size))
    return value


def json_object(text: str | None, option: str) -> dict[str, Any] | None:
    value = json_option(text, option)
    if value is not None and not isinstance(value, dict):
        raise UsageError(f"{option} must be a JSON object, not {printable_json(value)[:60]}")
    return value


async def warn_without_poller(client: Client) -> bool:
    """Warn if no worker polls, or none of a current version: the saga waits for one, which is not an error."""
    from saga_workers.temporal.temporal_runs import START_WORKER_HELP, count_pollers, no_poller_message
    from saga_workers.temporal.worker_deployments import (
        no_current_version,
        set_current_command,
        version_to_make_current,
    )

    queue = client.project.settings.temporal.task_queue
    if await count_pollers(client.temporal, queue):
        version = await version_to_make_current(client.temporal, queue)
        if version is None:
            return False
        warn(f"warning: {no_current_version(version)}", f"help: {set_current_command(version)}")
        return True
    warn(
        f"warning: {no_poller_message(queue)}, so the saga does not start until one does",
        f"help: {START_WORKER_HELP}",
    )
    return True


def saga_filter(
    settings: Settings,
    *,
    saga: str | None = None,
    states: Sequence[str] = (),
    since: str | None = None,
    labels: Sequence[str] = (),
    where: str | None = None,
    own_queue: bool = False,
) -> SagaFilter:
    """With the name of a saga all task queues are searched, unless ``own_queue`` is set; otherwise the project's.

    Raises UsageError: a state, a date or a label is invalid.
    """
    from saga_workers.views.saga_list import SagaFilter

    return SagaFilter(
        saga=saga,
        states=tuple(word.strip().upper() for state in states for word in state.split(",")),
        since=None if since is None else parse_time(since, now=datetime.now(UTC)),
        labels=dict(_parse_label(label) for label in labels),
        where=where,
        task_queue=settings.temporal.task_queue if own_queue or saga is None else None,
    )


def parse_time(text: str, *, now: datetime) -> datetime:
    """`2h` is two hours ago; otherwise a date or a timestamp, in this machine's time zone if none is given."""
    from sagas.definition.times import parse_duration

    try:
        return now - timedelta(seconds=parse_duration(text))
    except ValueError:
        pass  # not a duration: then a date
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"--since: {text} is neither a duration nor a date",
            help="for example --since 2h, or --since 2026-03-01",
        ) from None
    return parsed.astimezone(UTC)


def _parse_label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"-l takes name=value, not {text!r}")
    return name, value


def parse_duration_option(text: str, option: str) -> timedelta:
    """The value of an option such as ``--grace 30s``. Raises UsageError: it is not a duration."""
    from datetime import timedelta

    from sagas.definition.times import parse_duration

    try:
        return timedelta(seconds=parse_duration(text))
    except ValueError as error:
        raise UsageError(f"{option}: {error}", help=f"for example {option} 30s") from None


def start_logging(log_format: str) -> None:
    """Configure the log of a process as ``--log-format`` says. Raises UsageError: an unknown format."""
    from saga_workers.runtime.logs import configure_logs

    if log_format not in ("text", "json"):
        raise UsageError(f"--log-format must be text or json, not {log_format}")
    configure_logs(log_format, debug=global_options().debug)
