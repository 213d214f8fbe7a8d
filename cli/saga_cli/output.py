"""The output of commands: documents on stdout, messages where they do not mix with documents."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from saga_cli.context import global_options
from sagas.errors import UsageError
from sagas.settings.masking import mask
from sagas.settings.private_files import write_private_text
from sagas.text.printable import printable, printable_json, printable_line

if TYPE_CHECKING:
    from rich.console import Console


def wants_json() -> bool:
    return global_options().format != "human"


class TerminalStream:
    """Standard output or error for text that may come from data: no control or escape sequence gets through.

    ``styled`` is the stream itself, for the colours of :func:`make_console`. ``masked``: nor do credentials, which
    messages of drivers and warnings of libraries quote.
    """

    def __init__(self, styled: TextIO, *, masked: bool = False) -> None:
        self.styled = styled
        self._masked = masked

    def write(self, text: str) -> int:
        self.styled.write(printable(mask(text) if self._masked else text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.styled, name)


def guard_streams() -> None:
    """Pass everything that this process prints through a :class:`TerminalStream`."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        # A terminal without the characters we print gets a replacement, not a traceback.
        getattr(stream, "reconfigure", lambda **_: None)(errors="replace")
        if not isinstance(stream, TerminalStream):
            setattr(sys, name, TerminalStream(stream, masked=name == "stderr"))


def echo(*lines: str) -> None:
    """Print lines; a line feed in one of them is escaped. With JSON on stdout they go to stderr."""
    _print_lines(lines, sys.stderr if wants_json() else sys.stdout)


def echo_progress(*lines: str) -> None:
    """Print lines about work that goes on: it is done to its end, although nobody reads any more what is printed."""
    with contextlib.suppress(BrokenPipeError):  # `head` has ended
        echo(*lines)


def warn(*lines: str) -> None:
    """Print lines on standard error."""
    _print_lines(lines, sys.stderr)


def _print_lines(lines: Iterable[str], file: TextIO) -> None:
    for line in lines:
        print(printable_line(line), file=file, flush=True)


def print_document(document: Any, *, human: Callable[[], Any]) -> None:
    """Print one JSON document, or for people what ``human`` prints."""
    if wants_json():
        print(to_json(document, indent=2 if global_options().format == "json" else None), flush=True)
    else:
        human()


def print_list(items: Iterable[Any], *, human: Callable[[Sequence[Any]], Any]) -> None:
    """Print items: as one JSON list, with ``-o jsonl`` in a line each, else with ``human``."""
    if global_options().format == "jsonl":
        for item in items:
            print(to_json(item), flush=True)
        return
    rows = list(items)
    print_document(rows, human=lambda: human(rows))


def to_json(value: Any, *, indent: int | None = None) -> str:
    return printable_json(value, indent=indent)


def age_text(seconds: float) -> str:
    """The age of a row or an event: `0.4 s`, `90.0 s`, `3 min`."""
    return f"{max(seconds, 0):.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def write_page(file: Path, page: str) -> None:
    """Write a report that quotes data: only its owner can read it. Raises UsageError if it cannot be written."""
    try:
        write_private_text(file, page)
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}") from error


def make_console(*, stderr: bool = False) -> Console:
    """A rich console; colours on a terminal only. Text is never markup, and its control characters are escaped."""
    from rich.console import Console
    from rich.segment import Segment

    class PlainTextConsole(Console):
        def render(self, renderable: Any, options: Any = None) -> Iterator[Segment]:
            for text, style, control in super().render(renderable, options):
                yield Segment(text if control else printable(text), style, control)

    stream = sys.stderr if stderr else sys.stdout
    file = stream.styled if isinstance(stream, TerminalStream) else stream
    return PlainTextConsole(file=file, markup=False, emoji=False, highlight=False, soft_wrap=False)


def print_table(rows: Iterable[Sequence[Any]], header: Sequence[str] = (), *, indent: int = 0) -> None:
    """Aligned columns of plain text, the last one unlimited: for short tables that need no rich."""
    table = [[printable_line(str(cell)) for cell in row] for row in ([header, *rows] if header else rows)]
    if not table:
        return
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]) - 1)]
    for row in table:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        print((" " * indent + "  ".join([*cells, row[-1]])).rstrip(), flush=True)


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something that cannot be undone.

    Raises:
        UsageError: the answer is no, or standard input is not a terminal and ``--yes`` was not given.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("this command needs a confirmation, but standard input is not a terminal", help="add --yes")
    warn(question)
    if input("Continue? [y/N] ").strip().lower() not in ("y", "yes"):
        raise UsageError("not confirmed; nothing was changed")


@contextmanager
def on_ctrl_c(message: Callable[[], str]) -> Iterator[None]:
    """Print ``message()`` on standard error when Ctrl-C ends the block."""
    try:
        yield
    except KeyboardInterrupt:
        warn(message())
        raise
