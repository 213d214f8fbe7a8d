"""`saga dev` shows, and stops, what runs, also while a setting is wrong: it is named, and left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.forked_commands import run_command

TOML = """
[connections.shop]
[codec]
key = {env = "A_KEY_THAT_IS_NOT_SET"}
[[reconcile.effects]]
[[reconcile.effects]]
table = "a"
"""


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("status", 0, "stopped"),
        ("down", 0, "nothing was running"),
        ("logs worker", 1, "worker has no log"),
        ("psql shop", 2, "no embedded PostgreSQL runs"),
    ],
)
def test_it_works_while_a_setting_is_wrong(command: str, code: int, words: str, tmp_path: Path) -> None:
    (tmp_path / "saga.toml").write_text(TOML, encoding="utf-8")
    done = run_command(["dev", *command.split()], tmp_path)
    assert (done.returncode, words in done.stdout + done.stderr) == (code, True), done
    assert "[[reconcile.effects]] 1: `connection` is missing" in done.stderr


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("status", 0, "stopped"),
        ("down", 0, "nothing was running"),
        ("logs worker", 1, "worker has no log"),
    ],
)
def test_it_works_while_the_file_is_no_toml(command: str, code: int, words: str, tmp_path: Path) -> None:
    (tmp_path / "saga.toml").write_text("definitions = [", encoding="utf-8")
    done = run_command(["dev", *command.split()], tmp_path)
    assert (done.returncode, words in done.stdout + done.stderr) == (code, True), done
    assert "saga.toml is not valid TOML" in done.stderr
