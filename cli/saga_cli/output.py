"""The output of commands: documents on stdout, messages where they do not mix with documents."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from saga_cli.context import global_options
from sagas.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console


def wants_json() -> bool:
    return global_options().format != "human"


def echo(text: str) -> None:
    """Print a message. With JSON on stdout it goes to stderr."""
    print(text, file=sys.stderr if wants_json() else sys.stdout, flush=True)


def warn(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def print_document(document: Any, *, human: Callable[[], Any]) -> None:
    """One JSON document, or what ``human`` prints."""
    if wants_json():
        print(to_json(document, indent=2 if global_options().format == "json" else None), flush=True)
    else:
        human()


def print_list(items: Iterable[Any], *, human: Callable[[Sequence[Any]], Any]) -> None:
    """A JSON list, one line for each item with ``--jsonl``, or what ``human`` prints."""
    if global_options().format == "jsonl":
        for item in items:
            print(to_json(item), flush=True)
        return
    rows = list(items)
    print_document(rows, human=lambda: human(rows))


def to_json(value: Any, *, indent: int | None = None) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=False, default=str)


def make_console(*, stderr: bool = False) -> Console:
    """A rich console; colours on a terminal only."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=False)


def print_table(rows: Iterable[Sequence[Any]], header: Sequence[str] = (), *, indent: int = 0) -> None:
    """Aligned columns of plain text, the last one unlimited: for short tables that need no rich."""
    table = [[str(cell) for cell in row] for row in ([header, *rows] if header else rows)]
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


# Ctrl-C: a command that has started something prints what keeps running before it exits with code 130.


INTERRUPTED = 130


@contextmanager
def on_ctrl_c(message: Callable[[], str]) -> Iterator[None]:
    """Print ``message()`` on standard error when Ctrl-C ends the block."""
    try:
        yield
    except KeyboardInterrupt:
        warn(message())
        raise
