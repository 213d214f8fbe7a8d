"""Commands that are printed can be pasted: a shell reads every id, file and reason in them as one word."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

from saga_cli.main import command_names, find_command
from sagas.text.shell import saga_command, shell_command
from tests.unit.cli.reference_page import click_command
from tests.unit.test_message_form import ROOMS, ROOT

HOSTILE = (
    "order-1",
    "order 1",
    "$(touch pwned)",
    "`touch pwned`",
    "a;touch pwned",
    "it's",
    "'; touch pwned; '",
    'say "hi"',
    "two\nlines",
    "back\\slash\n\\'",
    "\x1b[31mred\x1b[0m",
    "\x9b31m",
    "right\u202eleft",
    "naïve…",
    "*",
    "~root",
    "!!",
    "",
)

PRINTED = re.compile(
    rf"""(?:\bsaga\ (?:dev\ )?(?:{"|".join(map(re.escape, command_names()))})\b  # a command of ours
         |(?:^|\W)(?:cd|export|pip\ install|temporal\ operator|kafka-\w+\.sh)\ )
         (?:(?!\ {{4}}|[`\n;]).)*?\0  # then data in the same command
     """,
    re.VERBOSE,
)
"""Data is ``\\0``. Four spaces end a command: after them is what it does."""


def texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and text of every string that is composed: f-strings, and constants with `%s` or `{}`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, re.sub(r"%[sdr]|\{\w*\}", "\0", node.value)


@cache
def texts_of(room: str) -> Sequence[tuple[str, str]]:
    """Place and text of all strings of a room, and of the calls of `saga_command`, whose texts have no data."""
    written = [(f"{file}:{line}", text) for file, tree in trees_of(room) for line, text in texts(tree)]
    return [*written, *composed_in(room)]


@cache
def composed_in(room: str) -> Sequence[tuple[str, str]]:
    """Place and text of the calls of `saga_command` in a room."""
    return [(f"{file}:{line}", text) for file, tree in trees_of(room) for line, text in built_commands(tree)]


@cache
def trees_of(room: str) -> Sequence[tuple[Path, ast.AST]]:
    files = sorted((ROOT / room).rglob("*.py"))
    return [(file.relative_to(ROOT), ast.parse(file.read_text(encoding="utf-8"))) for file in files]


@pytest.mark.parametrize("room", [*ROOMS, "definitions/retail/demo"])
def test_a_printed_command_is_built_with_its_words_quoted(room: str) -> None:
    printed = [f"{place}: {text!r}" for place, text in texts_of(room) if PRINTED.search(text)]
    assert not printed, "use sagas.text.shell for:\n" + "\n".join(printed)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("follow it with `saga watch \0`", True),
        ("saga dev logs \0", True),
        ("saga resolve \0 \0 retry --reason '…'", True),
        ("cd \0", True),
        ("export \0=…", True),
        ("saga dev logs temporal    (\0)", False),
        ("saga doctor; \0 is missing", False),
        ("run `saga setup` for \0", False),
        ("the saga \0 has ended", False),
    ],
)
def test_what_counts_as_a_printed_command(text: str, wrong: bool) -> None:
    assert bool(PRINTED.search(text)) is wrong


LITERAL = re.compile(
    rf"(?<![\w.])saga ({'|'.join(map(re.escape, command_names()))})(?![\w-])((?:(?! {{4}}|[`\n;()]).)*)"
)
"""A command in a text, up to where :data:`PRINTED` ends one."""

OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
EVERYWHERE = {"--json", "--jsonl", "--config", "--debug", "--help"}


@cache
def options_of(name: str) -> dict[str, set[str]]:
    """The options of a command, under the empty name, or those of each of its subcommands."""
    verb = find_command(name)
    assert verb is not None
    command = click_command(verb)
    children = getattr(command, "commands", None) or {"": command}
    return {
        child: {option for parameter in each.params for option in (*parameter.opts, *parameter.secondary_opts)}
        for child, each in children.items()
    }


def mistakes_in(text: str) -> list[str]:
    """The commands in a text that name an option or a subcommand that is not there."""
    wrong = []
    for verb, rest in LITERAL.findall(text):
        children = options_of(verb)
        words = rest.split()
        if "" not in children and words and words[0].isalpha() and words[0].islower() and words[0] not in children:
            wrong.append(f"saga {verb} {words[0]}")
        options = children.get(words[0] if words else "") or set().union(*children.values())
        wrong += [f"saga {verb} {option}" for option in OPTION.findall(rest) if option not in options | EVERYWHERE]
    return wrong


def built_commands(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and text of each call of `saga_command` whose verb is written there, with the names of its options."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "saga_command" and node.args:
            words = [each.value for each in node.args if isinstance(each, ast.Constant)]
            options = [f"--{keyword.arg.replace('_', '-')}" for keyword in node.keywords if keyword.arg]
            if isinstance(node.args[0], ast.Constant):
                yield node.lineno, " ".join(["saga", *map(str, words), *options])


@pytest.mark.parametrize("room", [*ROOMS, "definitions/retail/demo"])
def test_a_command_in_a_text_exists_with_its_options(room: str) -> None:
    wrong = [f"{place}: {mistake}" for place, text in texts_of(room) for mistake in mistakes_in(text)]
    assert not wrong, "\n".join(wrong)


WITH_REASON = ("resolve", "undo", "forget", "enqueued drop")
"""Commands that are refused without --reason, as `relay` is with --release or --drop."""

ABOUT = re.compile(r"^\s+(?:drop\s+)?(?:[A-Z]+\b|\0)")
"""A command that names a saga or a row, and is not only mentioned."""


def lacks_reason(text: str, *, composed: bool) -> bool:
    """True if a text has a command that cannot be run as it is printed."""
    for verb, rest in LITERAL.findall(text):
        decides = any(f"{verb}{rest} ".startswith(f"{each} ") for each in WITH_REASON)
        decides = decides or (verb == "relay" and ("--release" in rest or "--drop" in rest))
        if decides and (composed or ABOUT.match(rest)) and "--reason" not in rest:
            return True
    return False


@pytest.mark.parametrize("room", [*ROOMS, "definitions/retail/demo"])
def test_a_decision_is_printed_with_its_reason(room: str) -> None:
    composed = {f"{place}: {text}" for place, text in composed_in(room) if lacks_reason(text, composed=True)}
    written = {f"{place}: {text}" for place, text in texts_of(room) if lacks_reason(text, composed=False)}
    assert composed | written == set(), "the command exits with code 2"


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("saga undo ID", True),
        ("saga undo \0    undoes both", True),
        ("saga enqueued drop ROW    never", True),
        ("saga enqueued retry ROW    delivers it", False),
        ("saga resolve ID STEP retry --reason …", False),
        ("`saga undo` finishes it", False),
    ],
)
def test_what_counts_as_a_decision_without_a_reason(text: str, wrong: bool) -> None:
    assert lacks_reason(text, composed=False) is wrong


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("saga setup    prints; --nothing", []),
        ("run `saga setup --print` once", []),
        ("run `saga setup --printed` once", ["saga setup --printed"]),
        ("saga dev restart worker", []),
        ("saga dev reboot", ["saga dev reboot"]),
        ("saga dev up --wipe", ["saga dev --wipe"]),
    ],
)
def test_what_counts_as_a_mistake_in_a_command(text: str, wrong: list[str]) -> None:
    assert mistakes_in(text) == wrong


def shell_words(line: str, folder: Path) -> list[str]:
    """The arguments that bash passes to `saga`."""
    script = "set -H\nsaga() { printf '%s\\0' \"$@\"; }\n" + line
    done = subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, check=True)
    return done.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1]


@pytest.mark.parametrize("value", HOSTILE)
def test_a_shell_reads_every_value_as_one_word(value: str, tmp_path: Path) -> None:
    line = saga_command("resolve", value, "step", "retry", reason=value, where=value, again=True, result=None)
    assert shell_words(line, tmp_path) == [
        "resolve", value, "step", "retry", "--reason", value, "--where", value, "--again"
    ]  # fmt: skip
    assert line.isprintable()
    assert list(tmp_path.iterdir()) == []


def test_an_id_that_looks_like_an_option_stays_an_argument() -> None:
    assert saga_command("show", "--config=x", reveal=True) == "saga show --reveal -- --config=x"
    assert saga_command("relay", release="-x", reason="…") == "saga relay --release=-x --reason '…'"


def test_a_file_name_that_is_no_text_keeps_its_bytes(tmp_path: Path) -> None:
    name = b"a\xff b".decode("utf-8", "surrogateescape")
    assert shell_words(shell_command("saga", "validate", name), tmp_path) == ["validate", name]
