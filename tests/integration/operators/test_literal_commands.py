"""Commands that texts of the product name as they are, without an id: each is run, in the state in which it is named.

`test_operator_advice.py` does the same for commands that are composed.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from saga_cli.main import command_names
from tests.integration.operators.conftest import Observed
from tests.integration.operators.literal_commands import LOOKED, NOT_RUN, RUN_ELSEWHERE
from tests.unit.test_message_form import ROOMS
from tests.unit.test_printed_commands import LITERAL, OPTION, options_of, texts

ROOT = Path(__file__).parents[3]
NAMED = re.compile(rf"""saga(?:\s|["'f\\]|\#[^\n]*\n)*(?:{"|".join(map(re.escape, command_names()))})\b""")
"""A source without such words, also in a string that is continued, names no command: it need not be parsed."""


def named() -> dict[str, str]:
    """Each command that a text names, and one of the places: the verb, its subcommand and its options."""
    collected: dict[str, str] = {}
    for room in ROOMS:
        for file in sorted((ROOT / room).rglob("*.py")):
            source = file.read_text(encoding="utf-8")
            for line, text in texts(ast.parse(source)) if NAMED.search(source) else ():
                for verb, rest in LITERAL.findall(text):
                    words, children = rest.split(), options_of(verb)
                    first = words[0].strip(".,:'") if words else ""
                    child = [first] if "" not in children and first in children else []
                    command = " ".join([verb, *child, *sorted(set(OPTION.findall(rest)))])
                    collected.setdefault(command, f"{file.relative_to(ROOT)}:{line}")
    return collected


def test_each_command_in_a_text_is_run_or_says_why_not() -> None:
    places = named()
    listed = LOOKED.keys() | RUN_ELSEWHERE.keys() | NOT_RUN.keys()
    assert {command: place for command, place in places.items() if command not in listed} == {}
    assert listed - places.keys() == set(), "no text names it any more"
    assert len(listed) == len(LOOKED) + len(RUN_ELSEWHERE) + len(NOT_RUN)


@pytest.mark.parametrize("command", RUN_ELSEWHERE)
def test_the_test_that_is_named_has_the_words(command: str) -> None:
    text = (ROOT / RUN_ELSEWHERE[command]).read_text(encoding="utf-8").casefold()
    assert all(word.lstrip("-") in text for word in command.split())


@pytest.mark.parametrize("command", LOOKED)
def test_a_command_that_looks_can_be_run_among_stuck_sagas(observed: Observed, command: str) -> None:
    printed = observed.looks[command]
    assert printed.code != 2, printed
    assert "Traceback" not in printed.err
    assert printed.out.strip()


def test_commands_that_look_change_nothing(observed: Observed) -> None:
    assert observed.rows_after_looks == observed.rows_before_looks
