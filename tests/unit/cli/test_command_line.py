from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from saga_cli import main
from saga_cli.context import GlobalOptions, global_options, split_options
from sagas.errors import UsageError


@pytest.mark.parametrize(
    ("args", "options", "rest"),
    [
        # accepted after the verb, before it, and between its arguments
        (["show", "a", "-o", "json"], GlobalOptions(format="json"), ["show", "a"]),
        (["--json", "show", "a"], GlobalOptions(format="json"), ["show", "a"]),
        (["show", "--jsonl", "a"], GlobalOptions(format="jsonl"), ["show", "a"]),
        (["list", "-ojson"], GlobalOptions(format="json"), ["list"]),
        (["list", "-o=text"], GlobalOptions(), ["list"]),
        (["list", "--json", "-o", "json"], GlobalOptions(format="json"), ["list"]),
        (["list", "--config", "x.toml", "--debug"], GlobalOptions(config="x.toml", debug=True), ["list"]),
        (["list", "--config=x.toml"], GlobalOptions(config="x.toml"), ["list"]),
        # after -- nothing is an option
        (["start", "--", "--json"], GlobalOptions(), ["start", "--", "--json"]),
    ],
)
def test_global_options_are_accepted_anywhere(args: list[str], options: GlobalOptions, rest: list[str]) -> None:
    assert split_options(args) == (options, rest)


@pytest.mark.parametrize("args", [["list", "-o"], ["list", "-o", "yaml"], ["list", "--config"]])
def test_global_options_with_invalid_values_are_refused(args: list[str]) -> None:
    with pytest.raises(UsageError):
        split_options(args)


def test_every_command_has_a_unique_name() -> None:
    assert len(set(main.command_names())) == len(main.command_names())
    assert all(main.find_command(alias) for alias in main.ALIASES)


@pytest.mark.parametrize(
    ("args", "exit_code", "error"),
    [
        (["shwo"], 2, "there is no command shwo; did you mean show?"),
        (["start", "shop", "--wiat"], 2, "no such option: --wiat; did you mean --wait?"),
        (["start", "shop", "--timout", "5s"], 2, "no such option: --timout; did you mean --timeout?"),
        (["undo", "shop-1", "--where", "x"], 2, "no such option: --where\nhelp: saga undo --help"),
        (["dev", "statsu"], 2, "Did you mean 'status', 'restart'?"),
        (["dev", "logs"], 2, "missing argument"),
        (["dev", "down", "--wip"], 2, "did you mean --wipe?"),
        (["dev", "up", "--only", "temporl"], 2, "did you mean temporal?"),
        (["-o", "yaml", "dev"], 2, "not yaml"),
        (["--config", "/nowhere.toml", "dev", "status"], 2, "no settings file"),
        # an option with one value is given once; the value that counts must not depend on the order
        (["list", "--limit", "3", "--limit=4"], 2, "--limit is given more than once"),
        (["dev", "logs", "worker", "-n3", "--lines", "4"], 2, "--lines/-n is given more than once"),
        (["list", "--config", "a.toml", "--config", "b.toml"], 2, "--config is given more than once"),
        (["list", "--json", "-o", "jsonl"], 2, "asked for as json and as jsonl"),
    ],
)
def test_a_mistake_gives_a_one_line_error(
    args: list[str], exit_code: int, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(args) == exit_code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert error in printed.err
    assert "Traceback" not in printed.err


def test_psql_runs_every_command_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "saga.toml").write_text('[connections.shop]\nurl = "postgresql://me:secret@127.0.0.1/shop"\n')
    (tmp_path / "psql").write_text('#!/bin/sh\nprintf "%s\\n" "$@" > "$0.arguments"\n')
    (tmp_path / "psql").chmod(0o755)
    monkeypatch.setattr("saga_workers.devstack.postgres_client.program_folder", lambda: tmp_path)
    command = ["--config", str(tmp_path / "saga.toml"), "dev", "psql", "shop", "-c", "select 1", "-c", "select 2"]
    process = os.fork()
    if process == 0:
        main.run(command)
        os._exit(1)
    assert os.waitpid(process, 0)[1] == 0
    arguments = (tmp_path / "psql.arguments").read_text().splitlines()
    assert arguments[1:] == ["--command=select 1", "--command=select 2"]


def test_an_internal_error_is_reported_as_a_bug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(**_: Any) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("saga_cli.commands.begin.dev._valid_settings", broken)
    assert main.run(["dev", "status"]) == 1
    assert "internal error, a bug in saga: ZeroDivisionError" in capsys.readouterr().err
    assert main.run(["dev", "status", "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(**_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("saga_cli.commands.begin.dev._valid_settings", interrupted)
    assert main.run(["dev", "status"]) == 130


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([]) == 0
    text = capsys.readouterr().out
    assert all(f"  {verb.name} " in text for verb in main.COMMANDS)


def test_the_options_of_a_command_line_are_not_those_of_the_next_one() -> None:
    assert main.run(["--json", "--debug", "unknown"]) != 0
    assert global_options() == GlobalOptions()
