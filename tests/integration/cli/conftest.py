"""A small project in a folder, its worker in this process, and the `saga` command run against it."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from saga_cli import main
from saga_workers.client import Client
from sagas.project import Project
from sagas.settings import load_settings
from tests.helpers.local_worker import running_worker
from tests.helpers.processes import TemporalServer, WorkerProcess
from tests.unit.cli.view_schema import problems

ACTIONS = """
from dataclasses import dataclass
from pathlib import Path

from sagas import Rejected, action


@dataclass
class Reservation:
    id: str
    nights: int = 1


BROKEN = Path(__file__).parent / "broken"


@action("work")
async def work(mode: str = "ok") -> dict:
    if mode == "reject":
        raise Rejected("card declined", limit=3)
    if mode == "retry" and (Path(__file__).parent / "down").exists():
        raise ConnectionError("the airline does not answer")
    return {"mode": mode}


@action("reserve")
async def reserve() -> Reservation:
    raise Rejected("the hotel is full")


@action("unwork")
async def unwork(mode: str = "ok") -> None:
    if BROKEN.exists():
        raise Rejected("the other side says no")
    if (Path(__file__).parent / "undo-down").exists():
        raise ConnectionError("the hotel does not answer")
"""

TRIP = """
saga: trip
input:
  type: object
  additionalProperties: false
  properties:
    mode: {type: string, default: ok}
    nights: {type: integer}
labels: {mode: "${{ input.mode }}"}
steps:
  - {id: hotel, name: Book the hotel, uses: work, compensate: unwork}
  - {id: car, uses: work, compensate: unwork}
  - {id: flight, uses: work, with: {mode: "${{ input.mode }}"}, compensate: unwork}
"""

TOUR = """
saga: tour
input: {type: object, properties: {mode: {type: string, default: ok}}}
steps:
  - {id: leg, uses: saga, with: {name: trip, input: {mode: "${{ input.mode }}"}}}
"""

ORDER = """
saga: order
id: "${{ input.number }}"
input: {type: object, required: [number], properties: {number: {type: string}}}
steps:
  - {id: pay, uses: work, pivot: true}
  - {id: parcel, uses: wait, with: {signal: delivered}}
"""

NUMBERED = """
saga: numbered
id: "numbered-${{ input.n }}"
labels: {n: "${{ input.n }}"}
input:
  type: object
  required: [n]
  properties: {n: {$ref: "#count"}, who: {$ref: "#person"}}
  $defs:
    count: {$anchor: count, type: integer}
    person: {$anchor: person, properties: {card: {type: string, maxLength: 10, x-sensitive: true}}}
steps:
  - {id: pay, uses: work, pivot: true}
output: {n: "${{ input.n }}"}
"""

ASK = """
saga: ask
steps:
  - {id: hold, uses: work, compensate: unwork}
  - {id: approval, uses: wait, with: {signal: approve}}
output: {by: "${{ steps.approval.result.by }}"}
"""


@dataclass(frozen=True)
class CommandResult:
    """The output and exit code of one command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass
class CommandLine:
    """Runs `saga` with the settings of the project. ``client`` speaks to the same server."""

    folder: Path
    capsys: pytest.CaptureFixture[str]
    client: Client

    async def saga(self, *words: str) -> CommandResult:
        """In a thread: the command has an event loop of its own, and the worker needs this one."""
        self.capsys.readouterr()
        code = await asyncio.to_thread(main.run, ["--config", str(self.folder / "saga.toml"), *words])
        reported = self.capsys.readouterr()
        assert "Traceback" not in reported.err
        assert "bug in saga" not in reported.err
        result = CommandResult(code, reported.out, reported.err)
        if "--json" in words and reported.out:
            check_views(words, result.json)
        return result

    def break_undo(self, broken: bool) -> None:
        file = self.folder / "broken"
        file.touch() if broken else file.unlink(missing_ok=True)


def check_views(args: Sequence[str], printed: Any) -> None:
    """Every view that a command prints fits the published schema; those of a list have no steps."""
    if "batch" in args or "schedule" in args:
        return  # they are not sagas
    listed = "list" in args
    for document in printed if listed else [printed]:
        if listed or "show" in args or (isinstance(document, dict) and "steps" in document):
            assert problems(document, without=("steps",) if listed else ()) == []


def fresh(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex[:8]}"


def write_project(folder: Path, server: TemporalServer) -> Project:
    folder.mkdir(exist_ok=True)
    for name, text in (("trip", TRIP), ("tour", TOUR), ("order", ORDER), ("numbered", NUMBERED), ("ask", ASK)):
        (folder / f"{name}.saga.yaml").write_text(text)
    (folder / "actions.py").write_text(ACTIONS)
    (folder / "saga.toml").write_text(
        f'definitions = ["."]\nactions = ["./actions.py"]\n[temporal]\naddress = "{server.address}"\n'
        f'task_queue = "{fresh("cli")}"\nweb_ui = "{server.web_ui}"\n'
    )
    return Project(load_settings(config=str(folder / "saga.toml")))


@pytest.fixture
async def cli(
    temporal: TemporalServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> AsyncIterator[CommandLine]:
    """With a worker."""
    project = write_project(tmp_path / "project", temporal)
    async with running_worker(project) as client:
        yield CommandLine(tmp_path / "project", capsys, client)


@pytest.fixture
async def cli_without_worker(
    temporal: TemporalServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> CommandLine:
    """Without a worker."""
    project = write_project(tmp_path / "project", temporal)
    return CommandLine(tmp_path / "project", capsys, await Client.connect(project))


@pytest.fixture
async def folder(temporal: TemporalServer, tmp_path: Path) -> Path:
    write_project(tmp_path / "project", temporal)
    return tmp_path / "project"


@pytest.fixture
def worker(folder: Path) -> Iterator[WorkerProcess]:
    with WorkerProcess("worker", folder) as process:
        yield process


@pytest.fixture
async def cli_with_worker_process(
    folder: Path, worker: WorkerProcess, capsys: pytest.CaptureFixture[str]
) -> CommandLine:
    """With a worker in a process of its own."""
    project = Project(load_settings(config=str(folder / "saga.toml")))
    return CommandLine(folder, capsys, await Client.connect(project))
