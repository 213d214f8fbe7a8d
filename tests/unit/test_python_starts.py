"""Every start of Python goes through `sagas.settings.python_processes`, which keeps the working folder off the path."""

from __future__ import annotations

import ast
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sagas.errors import UsageError
from sagas.settings.python_processes import python_command_of
from tests.unit.test_message_form import ROOMS, ROOT

OWNER = ROOT / "sagas" / "sagas" / "settings" / "python_processes.py"


def starts(file: Path) -> Iterator[str]:
    """Commands with this Python, and options that run a module."""
    source = file.read_text(encoding="utf-8")
    if "executable" not in source and "-m" not in source:
        return  # to parse it takes much longer
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.List | ast.Tuple):
            words = [ast.unparse(word) for word in node.elts]
            if "sys.executable" in words or "'-m'" in words:
                yield f"{file.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"


def test_one_module_starts_python() -> None:
    files = [file for room in (*ROOMS, "definitions") for file in sorted((ROOT / room).rglob("*.py"))]
    assert OWNER in files
    assert [start for file in files if file != OWNER for start in starts(file)] == []


def test_one_helper_decides_what_the_fork_server_preloads() -> None:
    """A second call would replace the first one's modules, and each forked command would import the engine anew."""
    calls = [
        file.relative_to(ROOT).as_posix()
        for file in sorted((ROOT / "tests").rglob("*.py"))
        if ".set_forkserver_preload(" in file.read_text(encoding="utf-8") and file != Path(__file__)
    ]
    assert calls == ["tests/helpers/forked_commands.py"]


def test_its_starts_do_not_search_the_working_folder() -> None:
    commands = list(starts(OWNER))
    assert commands
    assert [command for command in commands if "'-P'" not in command] == []


def test_a_module_of_a_folder_shadows_no_other(tmp_path: Path) -> None:
    (tmp_path / "play.py").write_text("import json, sys; print(json.dumps([1]), sys.argv[1:], __name__)")
    (tmp_path / "json.py").write_text("raise SystemExit('imported from the working folder')")
    argv = python_command_of(tmp_path, "play", "--fast")
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[1] ['--fast'] __main__\n", "")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_module_of_another_user_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "play.py").write_text("")
    os.chown(tmp_path / "play.py", 1234, -1)
    with pytest.raises(UsageError, match=r"play\.py belongs to another user \(uid 1234\)"):
        python_command_of(tmp_path, "play")
