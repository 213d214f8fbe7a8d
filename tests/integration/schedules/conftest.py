"""A project with a scheduled saga, its worker in this process, and the `saga` command run against it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import ScheduleBackfill, ScheduleDescription, ScheduleHandle, ScheduleOverlapPolicy
from temporalio.service import RPCError

from sagas.errors import UsageError
from sagas.project import Project
from sagas.protocol.schedule_order import schedule_id
from sagas.settings import load_settings
from tests.helpers.local_worker import running_worker
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until
from tests.integration.cli.conftest import ACTIONS, CommandLine, CommandResult, fresh

SAGA = """
saga: NAME
input:
  type: object
  additionalProperties: false
  required: [at]
  properties:
    at: {type: string}
    day: {type: string, default: ""}
    waits: {type: boolean, default: false}
triggers:
  schedule:
SCHEDULE
steps:
  - {id: book, uses: work, compensate: unwork}
  - {id: approval, uses: wait, if: input.waits, with: {signal: approve}}
output: {at: "${{ input.at }}", day: "${{ input.day }}"}
"""

LIMIT = 20.0
"""Seconds: the server needs less than one."""

INPUT = '{at: "${{ trigger.scheduled_at }}", day: "${{ trigger.scheduled_date }}"}'
WAITING = '{at: "${{ trigger.scheduled_at }}", waits: true}'


@dataclass
class ScheduledProject:
    """A project with a scheduled saga of a name of its own. Its times are far away, unless a test says otherwise."""

    folder: Path
    cli: CommandLine
    name: str

    def write(self, cron: str = "0 3 1 1 *", *, input: str = INPUT, **fields: Any) -> None:
        """Write the definition, as an author changes it."""
        lines = [f'cron: "{cron}"', f"input: {input}", *(f"{name}: {value}" for name, value in fields.items())]
        self._write(SAGA.replace("SCHEDULE", "\n".join(f"    {line}" for line in lines)))

    def write_without_schedule(self) -> None:
        self._write(SAGA.replace("triggers:\n  schedule:\nSCHEDULE\n", ""))

    def _write(self, text: str) -> None:
        (self.folder / "close.saga.yaml").write_text(text.replace("NAME", self.name))

    def id(self, slot: str) -> str:
        """The id of the saga of a time."""
        return f"{self.name}-{slot}"

    async def saga(self, *words: str) -> CommandResult:
        return await self.cli.saga(*words)

    async def set_up(self) -> CommandResult:
        result = await self.cli.saga("setup")
        assert result.code == 0, result.err
        return result

    @property
    def schedule(self) -> ScheduleHandle:
        queue = self.cli.client.project.settings.temporal.task_queue
        return self.cli.client.temporal.get_schedule_handle(schedule_id(queue, self.name))

    async def described(self) -> ScheduleDescription:
        return await self.schedule.describe()

    async def shown(self) -> dict[str, Any]:
        result = await self.cli.saga("schedule", "show", self.name, "--json")
        assert result.code == 0, result.err
        return result.json

    async def make_due(self, first: str, last: str, overlap: ScheduleOverlapPolicy | None = None) -> None:
        """Let Temporal make the starts of past times now, under the policy of the schedule."""
        begin, end = (datetime.fromisoformat(text).replace(tzinfo=UTC) for text in (first, last))
        await self.schedule.backfill(ScheduleBackfill(begin, end, overlap=overlap))

    async def state(self, saga_id: str) -> str | None:
        """The state of a saga; None if there is none."""
        try:
            return (await self.cli.client.view(saga_id)).state
        except UsageError:
            return None

    async def wait_for(self, saga_id: str, state: str) -> None:
        async def reached() -> bool:
            return await self.state(saga_id) == state

        await until(reached, f"{saga_id} is {state}", limit=LIMIT)

    async def approve(self, saga_id: str) -> None:
        """Let a saga end that waits."""
        await self.cli.client.signal(saga_id, "approve")
        await self.wait_for(saga_id, "COMPLETED")

    async def last(self, count: int = 1) -> list[dict[str, Any]]:
        """The last starts, oldest first, as soon as there are so many that are no longer running."""

        async def ended() -> list[dict[str, Any]] | None:
            starts = (await self.shown())["last"]
            over = [start for start in starts if start["outcome"] not in ("running", "waits for a worker")]
            return over[::-1] if len(over) >= count else None

        return await until(ended, "the starts are over", limit=LIMIT)


@pytest.fixture
async def scheduled(
    temporal: TemporalServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> AsyncIterator[ScheduledProject]:
    """With a worker; the test writes its definition and sets it up."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "actions.py").write_text(ACTIONS)
    (folder / "saga.toml").write_text(
        f'definitions = ["."]\nactions = ["./actions.py"]\n[temporal]\naddress = "{temporal.address}"\n'
        f'task_queue = "{fresh("schedules")}"\nweb_ui = "{temporal.web_ui}"\n'
    )
    project = Project(load_settings(config=str(folder / "saga.toml")))
    async with running_worker(project) as client:
        cli = CommandLine(folder, capsys, client)
        scheduled_project = ScheduledProject(folder, cli, fresh("close"))
        scheduled_project.write()
        yield scheduled_project
        with contextlib.suppress(RPCError):
            await scheduled_project.schedule.delete()
