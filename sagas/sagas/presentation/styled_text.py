"""Words and lengths of time as people read them, and lines of styled text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from html import escape
from typing import TYPE_CHECKING, Any

from sagas.text.author_values import RAISED_AT
from sagas.text.printable import printable_json, printable_line
from sagas.text.shortening import join_names, shorten

if TYPE_CHECKING:
    from sagas.protocol.saga_view import ErrorView, OperationView, ReasonView, SagaView, StepView

Span = tuple[str, str]
"""A string and its style (rich's words; empty: plain)."""

Line = list[Span]

MAX_WHO = 100
"""Characters of a name: of other clients it may be as long as a reason. Its end says whether it is verified."""

GIVEN_BY_THE_RUN = "as the run gives it, which proves nothing: read it before you execute it"
"""The note above SQL and calls for people to execute, which only the run can know."""


def to_plain(line: Line) -> str:
    """The line without its styles."""
    return "".join(printable_line(text) for text, _ in line).rstrip()


def to_rich(line: Line) -> Any:
    """The line as a `rich.text.Text`."""
    from rich.text import Text

    return Text.assemble(*((printable_line(text), style) for text, style in line))


def to_html(line: Line) -> str:
    """The line as HTML; the words of its styles are classes."""
    spans = ((escape(printable_line(text)), style) for text, style in line)
    return "".join(f'<span class="{style}">{text}</span>' if style else text for text, style in spans).rstrip()


def list_steps(names: Sequence[str]) -> str:
    """`reserve, charge and 3 more`, or `nothing`."""
    return join_names(names, 12) or "nothing"


def to_line(value: Any, limit: int = 60) -> str:
    """A value on one line, shortened."""
    text = value if isinstance(value, str) else printable_json(value)
    return shorten(" ".join(text.split()), limit)


def parse_timestamp(text: str | None) -> datetime | None:
    """The point in time in a view; None if there is no text, or if it is not a timestamp with a time zone."""
    try:
        time = None if text is None else datetime.fromisoformat(text)
    except ValueError:
        return None  # of a worker that is not of this engine
    return time if time is not None and time.tzinfo is not None else None


def local_time(at: datetime) -> str:
    """In the reader's own time zone."""
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def format_duration(end: datetime, begin: datetime) -> str:
    """A length of time for people: `0.4 s`, `12 s`, `3 min`, `5 h`, `2 days`."""
    seconds = max(0.0, (end - begin).total_seconds())
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.0f} h"
    return f"{seconds / 86400:.0f} days"


def reason_text(view: SagaView) -> str:
    """Why the saga went backward or ended, after the kind of reason: its message, or that there is none."""
    if view.reason and view.reason.message:
        return error_text(view.reason)
    if view.incomplete:
        return "the reason is unknown while the saga cannot be queried"
    return "no reason was given"


def error_text(error: ErrorView | ReasonView) -> str:
    """Return what the error of a step, of its undo or of a saga says, and where an author's code has raised it."""
    place = (error.details or {}).get(RAISED_AT)
    text = error.message or error.type or "no message"
    return f"{text} ({error.type} at {place})" if place else text


def attempt_text(row: StepView | OperationView) -> str:
    """Why the last attempt of a call failed, and when the next one is made."""
    times = f"attempt {row.attempts}: " if row.attempts else ""
    following = parse_timestamp(row.next_attempt_at)
    again = f"; the next attempt at {local_time(following)}" if following else ""
    return f"{times}{error_text(row.error) if row.error else 'no message'}{again}"


def progress_text(progress: Mapping[str, Any]) -> str:
    """One line for people: what a Spark step is doing, or the heartbeat as it stands."""
    if "doing" not in progress and "tasks" not in progress:
        return printable_json(progress)
    words = [str(progress["doing"])] if progress.get("doing") else []
    if progress.get("starting"):
        words.append(f"starting {progress['starting']}")
    if progress.get("tasks"):
        words.append(f"{progress.get('tasks_done', 0)} of {progress['tasks']} tasks")
    if progress.get("executors") == 0:
        words.append("no executors")
    if progress.get("rows"):
        words.append(f"{progress['rows']:,} row{'' if progress['rows'] == 1 else 's'}")
    if progress.get("spark_ui"):
        words.append(str(progress["spark_ui"]))
    return ", ".join(words)
