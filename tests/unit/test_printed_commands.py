"""Commands that are printed can be pasted: a shell reads every id, file and reason in them as one word."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from saga_cli.main import command_names
from sagas.text.shell import saga_command, shell_command
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


@pytest.mark.parametrize("room", [*ROOMS, "definitions/retail/demo"])
def test_a_printed_command_is_built_with_its_words_quoted(room: str) -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}: {text!r}"
        for file in sorted((ROOT / room).rglob("*.py"))
        for line, text in texts(ast.parse(file.read_text(encoding="utf-8")))
        if PRINTED.search(text)
    ]
    assert not found, "use sagas.text.shell for:\n" + "\n".join(found)


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
