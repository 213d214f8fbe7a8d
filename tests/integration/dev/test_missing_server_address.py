"""Commands without a configured Temporal server, or whose stack has stopped: none contacts a foreign server."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from saga_cli import main
from tests.helpers.processes import TemporalServer
from tests.integration.dev.conftest import Project, usual_port_taken

DOWN = "the dev stack of this project is not running; start it with saga dev up"
COMMANDS = (
    ("list",),
    ("show", "x"),
    ("watch", "x"),
    ("open", "x"),
    ("parked",),
    ("resolve", "x", "a", "retry", "--reason", "r"),
    ("cancel", "x"),
    ("cancel", "--where", "SagaState = 'RUNNING'", "--yes"),
    ("signal", "x", "y"),
    ("notify", "x"),
    ("undo", "x", "--reason", "r", "--yes"),
    ("setup",),
    ("reconcile",),
)
SERVING = (
    ("worker",),
    pytest.param(("trigger",), marks=pytest.mark.slow),
    pytest.param(("serve", "--listen", "127.0.0.1:0"), marks=pytest.mark.slow),
)
GREET = "saga: greet\ntriggers:\n  kafka: {topic: t, input: {}}\nsteps:\n  - {id: a, uses: wait, with: {signal: go}}\n"


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    for name in os.environ:
        if name.startswith(("TEMPORAL_", "SAGA_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(tmp_path_factory.mktemp("profile") / "temporal.toml"))
    monkeypatch.setenv("TOKEN", "secret")


@pytest.fixture
def other(project: Project) -> Iterator[Project]:
    """Another project, which may take the ports of the first."""
    made = Project(project.root.parent / "other")
    made.root.mkdir()
    try:
        yield made
    finally:
        made.call("dev", "down", "--wipe")


@pytest.fixture
def down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project that names no Temporal server, and whose stack does not run; it is the current folder."""
    (tmp_path / "saga.toml").write_text(
        'definitions = ["."]\n[kafka]\nbootstrap_servers = "127.0.0.1:1"\n[serve]\ntoken = {env = "TOKEN"}\n'
    )
    (tmp_path / "greet.saga.yaml").write_text(GREET)
    monkeypatch.chdir(tmp_path)
    return Project(tmp_path)


@pytest.mark.parametrize("args", [*COMMANDS, ("start", "greet")], ids=lambda words: words[0])
def test_commands_fail_while_the_project_stack_is_down(
    args: tuple[str, ...], down: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(args) == 2
    assert capsys.readouterr().err.startswith(f"error: {DOWN}\nhelp: or configure another server: ")


@pytest.mark.parametrize("args", SERVING, ids=lambda words: words[0])
def test_services_do_not_start_while_the_stack_is_down(args: tuple[str, ...], down: Project) -> None:
    done = down.call(*args)
    assert done.returncode == 2, done.stderr
    assert f"error: {DOWN}\n" in done.stderr


@pytest.mark.parametrize("args", COMMANDS, ids=lambda words: words[0])
def test_commands_outside_a_project_fail(
    args: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main.run(args) == 2
    assert capsys.readouterr().err.startswith(
        f"error: no Temporal server is configured, and {tmp_path} is not in a project; set TEMPORAL_ADDRESS\n"
    )


def test_the_environment_or_a_profile_names_the_server(
    temporal: TemporalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch:
        patch.setenv("TEMPORAL_ADDRESS", temporal.address)
        assert main.run(["list", "--saga", "nobody"]) == 0
    profiles = Path(os.environ["TEMPORAL_CONFIG_FILE"])
    profiles.write_text('[profile.default]\nnamespace = "default"\n')
    assert main.run(["list", "--saga", "nobody"]) == 2
    profiles.write_text(f'[profile.default]\naddress = "{temporal.address}"\n[profile.empty]\nnamespace = "default"\n')
    assert main.run(["list", "--saga", "nobody"]) == 0
    capsys.readouterr()
    assert main.run(["cancel", "nobody"]) == 2
    assert capsys.readouterr().err.startswith(f"→ {temporal.address} · default\n")
    monkeypatch.setenv("TEMPORAL_PROFILE", "empty")
    assert main.run(["list"]) == 2
    assert "the Temporal profile empty has no address" in capsys.readouterr().err


def test_doctor_reports_the_missing_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "saga.toml").touch()
    monkeypatch.chdir(tmp_path)
    assert main.run(["doctor", "--json"]) == 1
    [server] = [row for row in json.loads(capsys.readouterr().out) if row["check"] == "server"]
    assert (server["ok"], server["message"]) == (False, DOWN)


@pytest.mark.slow
def test_after_down_no_other_server_is_contacted(project: Project) -> None:
    project.up()
    project.saga("list")
    project.saga("dev", "down")
    done = project.call("list")
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, f"error: {DOWN}")


@pytest.mark.slow
def test_a_stack_without_temporal_is_reported(project: Project) -> None:
    project.up("--only", "postgres")
    done = project.call("list")
    assert done.returncode == 2
    assert "the dev stack of this project runs without Temporal; start it with saga dev up" in done.stderr


@pytest.mark.slow
def test_a_foreign_server_on_the_port_of_a_crashed_one_is_not_used(project: Project, other: Project) -> None:
    with usual_port_taken():
        before = project.up()
    for name in ("temporal", "postgres"):
        os.kill(before[name]["pid"], signal.SIGKILL)
    address = before["temporal"]["address"]
    (other.root / "saga.toml").write_text(f'[temporal]\naddress = "{address}"\n')
    assert other.up("--only", "temporal")["temporal"]["address"] == address
    other.saga("list")

    done = project.call("list")
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, f"error: {DOWN}")
    status = project.status()
    assert (status["temporal"]["state"], status["postgres"]["state"]) == ("failed", "failed")
    doctor = {row["check"]: row for row in json.loads(project.call("doctor", "--json").stdout)}
    assert doctor["server"]["message"] == DOWN
    assert doctor["connection shop"]["ok"] is False

    after = project.up()
    assert after["temporal"]["address"] != address
    assert after["postgres"]["address"] == before["postgres"]["address"]
    project.saga("list")
    assert other.status()["temporal"]["state"] == "running"


@pytest.mark.slow
def test_a_copy_of_a_project_does_not_use_the_stack_of_the_original(project: Project) -> None:
    project.up("--only", "temporal")
    copy = Project(project.root.parent / "copy")
    shutil.copytree(project.root, copy.root)
    done = copy.call("list")
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, f"error: {DOWN}")
    project.saga("list")
    moved = Project(project.root.parent / "moved")
    project.root.rename(moved.root)
    try:
        moved.saga("list")
    finally:
        moved.root.rename(project.root)
