"""The filters of `list` and `parked`, from the command line to what is asked of Temporal."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from sagas.errors import UsageError

if TYPE_CHECKING:
    from saga_workers.listing import Wanted
    from sagas.settings import Settings


def wanted(
    settings: Settings,
    *,
    saga: str | None = None,
    states: Sequence[str] = (),
    since: str | None = None,
    labels: Sequence[str] = (),
    where: str | None = None,
) -> Wanted:
    """Raises UsageError: a state, a point in time or a label that cannot be read."""
    from saga_workers.listing import Wanted

    return Wanted(
        saga=saga,
        states=tuple(one.strip().upper() for state in states for one in state.split(",")),
        since=None if since is None else point_in_time(since, now=datetime.now(UTC)),
        labels=dict(_label(one) for one in labels),
        where=where,
        task_queue=settings.temporal.task_queue,
    )


def point_in_time(text: str, *, now: datetime) -> datetime:
    """`2h` is two hours ago; otherwise a date or a point in time, of this machine's time zone if none is given."""
    from sagas.definition.durations import parse_duration

    try:
        return now - timedelta(seconds=parse_duration(text))
    except ValueError:
        pass  # not a duration: then a date
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"--since: {text} is neither a length of time nor a point in time",
            help="for example --since 2h, or --since 2026-03-01",
        ) from None
    return found.astimezone(UTC)


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"-l takes name=value, not {text!r}")
    return name, value
