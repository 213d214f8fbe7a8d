"""Data never reaches a terminal as a control sequence, markup or a line of its own."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest

from saga_cli.main import guard_streams, run
from saga_cli.output import TerminalStream, echo, make_console, print_table, to_json, warn
from saga_cli.render.saga_view import view_lines
from saga_workers.runtime.logs import configure_logs, fields
from sagas.errors import SagaError
from sagas.presentation.styled_text import to_plain, to_rich
from sagas.protocol.saga_view import SagaView

HOSTILE = "\x1b[95m\x1b]8;;http://evil\x07\r\x9b2K\u202e[red][link=http://evil]:bomb:[/]\nsaga list \x1b[2J"
SAFE = (
    r"\x1b[95m\x1b]8;;http://evil\x07\r\x9b2K\u202e[red][link=http://evil]:bomb:[/]\nsaga list \x1b[2J"  # as one line
)


AT = "2026-01-01T00:00:00Z"


class Terminal(io.StringIO):
    """A terminal, as far as a program can tell."""

    def isatty(self) -> bool:
        return True


@contextmanager
def on_a_terminal() -> Iterator[Terminal]:
    """Standard output and error are a terminal of 400 columns, guarded as in `saga` without global options."""
    shown = Terminal()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERM", "xterm-256color")
        patch.setenv("COLUMNS", "400")
        patch.setattr(sys, "stdout", shown)
        patch.setattr(sys, "stderr", shown)
        guard_streams()
        yield shown


def assert_harmless(text: str) -> None:
    without_styles = re.sub(r"\x1b\[(?!95m)[0-9;]*m", "", text)  # nothing of ours has colour 95
    assert not [character for character in without_styles if not character.isprintable() and character != "\n"]
    assert "saga list" not in [line[:9] for line in text.splitlines()]


def test_messages_and_tables_show_escapes() -> None:
    with on_a_terminal() as terminal:
        echo(HOSTILE)
        warn(HOSTILE)
        print_table([(HOSTILE, HOSTILE)], ("one", "two"))
        assert_harmless(terminal.getvalue())
        assert terminal.getvalue().count(SAFE) == 4


def test_a_plain_print_shows_escapes() -> None:
    with on_a_terminal() as terminal:
        print("one\ntwo\t\x1b[95m\r")
        assert terminal.getvalue() == "one\ntwo\t\\x1b[95m\\r\n"
        assert sys.stdout.isatty()


def test_guarding_twice_changes_nothing() -> None:
    with on_a_terminal():
        before = sys.stdout
        guard_streams()
        assert sys.stdout is before
        assert isinstance(before, TerminalStream)


def test_rich_markup_in_data_is_inert() -> None:
    with on_a_terminal() as terminal:
        from rich.table import Table
        from rich.text import Text

        table = Table()
        table.add_column(HOSTILE.replace("\n", ""))
        table.add_row(HOSTILE.replace("\n", ""))
        out = make_console()
        out.print(table)
        out.print(HOSTILE.replace("\n", ""), soft_wrap=True)
        out.print(Text(HOSTILE.replace("\n", ""), "bold"), soft_wrap=True)
        shown = terminal.getvalue()
        assert_harmless(shown)
        assert shown.count("[link=http://evil]:bomb:[/]") == 2, "a cell is cut where its escapes do not fit"
        assert "\x1b[1m" in shown, "the styles of the program itself stay"


def hostile_view() -> SagaView:
    """A view in which every string is hostile, except those with a fixed set of values."""
    call = {"uses": HOSTILE, "state": "PARKED", "attempts": 3, "error": {"type": HOSTILE, "message": HOSTILE}}
    step = {"id": HOSTILE, "step": HOSTILE, "name": HOSTILE, "uses": HOSTILE, "state": "PARKED", "outcome": "done"}
    step |= {"compensation": call, "progress": {"doing": HOSTILE}, "guarantee": "guarded"}
    parked = {
        "step": HOSTILE,
        "op": "do",
        "since": "2026-01-01T00:00:00Z",
        "why": HOSTILE,
        "decisions": ["retry"],
        "commands": [HOSTILE],
    }
    return SagaView.from_json(
        {
            **{"id": HOSTILE, "saga": HOSTILE, "state": "PARKED", "labels": {HOSTILE: HOSTILE}, "web_ui": HOSTILE},
            "reason": {"kind": "rejected", "step": HOSTILE, "message": HOSTILE, "details": {HOSTILE: HOSTILE}},
            **{"output": {HOSTILE: HOSTILE}, "stuck": [HOSTILE], "incomplete": HOSTILE, "not_done": [HOSTILE]},
            **{"steps": [step], "parked": [parked]},
            "residue": [{"step": HOSTILE, "kind": "effect_stays", "system": HOSTILE, "key": HOSTILE}],
            "operator": [{"at": AT, "who": HOSTILE, "step": HOSTILE, "decision": "retry", "reason": HOSTILE}],
        }
    )


def test_show_prints_one_harmless_line_for_each_line() -> None:
    with on_a_terminal() as terminal:
        lines = view_lines(hostile_view(), now=datetime.now(UTC))
        out = make_console()
        for line in lines:
            out.print(to_rich(line), soft_wrap=True)
        assert_harmless(terminal.getvalue())
        assert len(terminal.getvalue().splitlines()) == len(lines)
        assert all(to_plain(line).isprintable() for line in lines)


def test_watch_prints_harmless_lines() -> None:
    with on_a_terminal() as terminal:
        from saga_cli.commands.run.watch import _ChangePrinter  # pyright: ignore[reportPrivateUsage]
        from saga_cli.wait import TroublePrinter

        _ChangePrinter(TroublePrinter())(hostile_view())
        assert_harmless(terminal.getvalue())
        assert SAFE in terminal.getvalue()


def test_list_prints_harmless_lines() -> None:
    with on_a_terminal() as terminal:
        from saga_cli.commands.run.list import _print_list  # pyright: ignore[reportPrivateUsage]

        _print_list([hostile_view()], True, is_cut=False)
        assert_harmless(terminal.getvalue())
        assert len(terminal.getvalue().splitlines()) == 2


def test_parked_prints_harmless_lines() -> None:
    with on_a_terminal() as terminal:
        from saga_cli.commands.decide.parked import _print_groups  # pyright: ignore[reportPrivateUsage]
        from saga_workers.views.parked import group_parked, parked_operations

        _print_groups(group_parked(parked_operations(hostile_view())))
        assert_harmless(terminal.getvalue())


def test_an_error_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with on_a_terminal() as terminal:

        def fail(_: object) -> int:
            raise SagaError(f"refused: {HOSTILE}", help=HOSTILE)

        monkeypatch.setattr("saga_cli.main._dispatch", fail)
        assert run(["show", "x"]) == 1
        assert terminal.getvalue().splitlines() == [f"error: refused: {SAFE}", f"help: {SAFE}"]


def test_a_wrong_word_of_the_command_line_is_shown_escaped() -> None:
    with on_a_terminal() as terminal:
        assert run(["\x1b[95mshow"]) == 2
        assert run(["list", "--\x1b[95m"]) == 2
        assert_harmless(terminal.getvalue())


def test_json_is_the_same_document() -> None:
    with on_a_terminal() as terminal:
        document = hostile_view().to_json()
        print(to_json(document, indent=2))
        assert json.loads(terminal.getvalue()) == document
        assert_harmless(terminal.getvalue())


@pytest.mark.parametrize("format", ["text", "json"])
def test_a_log_line_stays_one_line(format: str) -> None:
    with on_a_terminal() as terminal:
        root = logging.getLogger()
        before = root.handlers[:], root.level
        try:
            configure_logs(format)  # pyright: ignore[reportArgumentType]
            logging.getLogger("saga.step").warning("failed: %s", HOSTILE, extra=fields(saga_id=HOSTILE, topic=HOSTILE))
            assert len(terminal.getvalue().splitlines()) == 1
            try:
                raise ValueError(f"{HOSTILE}\n2026-01-01T00:00:00Z INFO saga.step forged")
            except ValueError:
                logging.getLogger("saga.step").exception("bug")
        finally:
            root.handlers[:], root.level = before
        assert_harmless(terminal.getvalue())
        assert not [line for line in terminal.getvalue().splitlines() if line.startswith("2026-01-01")]
