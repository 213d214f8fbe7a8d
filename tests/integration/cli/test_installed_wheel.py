"""The wheel in an environment of its own, and projects whose modules have common names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import pytest

from saga_workers.devstack.service import http_get
from tests.helpers.free_ports import free_port
from tests.helpers.processes import Process, TemporalServer

ROOT = Path(__file__).parents[3]
COMMON_NAMES = ("activities.py", "workers/__init__.py", "cli.py", "spark_steps.py")
DEFINITION = """\
saga: greeting
input: {type: object, required: [name], properties: {name: {type: string}}}
steps:
  - id: greet
    uses: greet
    with: {name: "${{ input.name }}"}
    effect: none
output: {text: "${{ steps.greet.result.text }}"}
"""
ACTIONS = """\
from sagas import action


@action("greet")
def greet(name: str) -> dict:
    return {"text": f"hello {name}"}
"""
OWN_WORKER = """\
import asyncio

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker

import activities
import cli
import spark_steps
import workers
from sagas import SagaPlugin


@workflow.defn
class Own:
    @workflow.run
    async def run(self) -> str:
        return "own"


async def main() -> None:
    assert activities.mine and cli.mine and spark_steps.mine and workers.mine
    client = await Client.connect("{address}", plugins=[SagaPlugin()])
    async with Worker(client, task_queue="{queue}", workflows=[Own]):
        open("ready", "w").close()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the built wheel; third-party packages are those of the environment of the tests."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)], check=True
    )
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "env")], check=True)
    python = folder / "env" / "bin" / "python"
    [wheel] = folder.glob("*.whl")
    subprocess.run([*pip, "--python", str(python), "install", "--no-deps", "--no-compile", str(wheel)], check=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder / "env")}))
    # A folder named by a .pth file is searched last, and its own .pth files (an editable install) are not read.
    (packages / "third_party.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    return folder / "env"


def test_every_installed_package_name_begins_with_saga(environment: Path) -> None:
    [record] = environment.glob("lib/*/site-packages/saga_orchestrator-*.dist-info/RECORD")
    names = {line.split("/")[0] for line in record.read_text().splitlines() if not line.startswith("..")}
    assert {name for name in names if not name.startswith("saga")} == set()


def test_the_patterns_are_part_of_the_wheel(environment: Path, tmp_path: Path) -> None:
    argv = [str(environment / "bin" / "saga"), "init", "journey", "--pattern", "tcc"]
    subprocess.run(argv, cwd=tmp_path, env=clean_environment(), check=True)
    names = {file.name for file in (tmp_path / "journey").iterdir()}
    assert names == {"README.md", "airline.sql", "hotel.sql", "saga.toml", "tcc.saga.yaml"}


@pytest.mark.slow
def test_a_custom_worker_next_to_modules_with_common_names(
    environment: Path, temporal: TemporalServer, tmp_path: Path
) -> None:
    write_project(tmp_path, temporal, "own", "./greeting.py")
    (tmp_path / "greeting.py").write_text(ACTIONS)
    for name in COMMON_NAMES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine = True\n")
    (tmp_path / "worker.py").write_text(OWN_WORKER.format(address=temporal.address, queue="wheel-own"))
    argv = [str(environment / "bin" / "python"), "worker.py"]
    with Process("worker", argv, tmp_path, (tmp_path / "ready").exists, clean_environment()):
        assert start(environment, tmp_path) == {"text": "hello Ada"}


@pytest.mark.slow  # tests/docs/test_front_door.py runs the installed wheel
def test_an_action_package_called_activities(environment: Path, temporal: TemporalServer, tmp_path: Path) -> None:
    write_project(tmp_path, temporal, "package", "activities.shop")
    (tmp_path / "activities").mkdir()
    (tmp_path / "activities" / "__init__.py").touch()
    (tmp_path / "activities" / "shop.py").write_text(ACTIONS)
    port = free_port()
    argv = [str(environment / "bin" / "saga"), "worker", "--health", f"127.0.0.1:{port}"]
    with Process("worker", argv, tmp_path, lambda: http_get(port, "/readyz")[0] == 200, clean_environment()):
        assert start(environment, tmp_path) == {"text": "hello Ada"}


def write_project(folder: Path, temporal: TemporalServer, name: str, actions: str) -> None:
    (folder / "greeting.saga.yaml").write_text(DEFINITION)
    (folder / "saga.toml").write_text(
        f'definitions = ["."]\nactions = ["{actions}"]\n'
        f'[temporal]\naddress = "{temporal.address}"\ntask_queue = "wheel-{name}"\n'
    )


def start(environment: Path, folder: Path) -> object:
    """The output of a saga that `saga start --wait` has seen to its end."""
    argv = [str(environment / "bin" / "saga"), "start", "greeting", "--set", "name=Ada", "--wait", "-o", "json"]
    done = subprocess.run(argv, cwd=folder, env=clean_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["output"]


def clean_environment() -> Mapping[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
