"""`saga backfill --bulk`: past times of a schedule in bulk workflows, each time once whatever its input was."""

from __future__ import annotations

import pytest

from sagas.project import Project
from tests.helpers.local_worker import running_worker
from tests.integration.bulk.conftest import Bank
from tests.integration.cli.conftest import CommandLine

CLOSE = """
saga: close
input: {type: object, required: [at], properties: {at: {type: string}, note: {type: string, default: ""}}}
triggers:
  schedule: {cron: "0 * * * *", overlap: allow_all, input: {at: "${{ trigger.scheduled_at }}"}}
steps:
  - {id: check, uses: pass, with: {result: "${{ input.at }}"}}
output: {at: "${{ steps.check.result }}"}
"""


async def test_each_time_has_one_saga(bank_project: tuple[Project, str], capsys: pytest.CaptureFixture[str]) -> None:
    given, url = bank_project
    file = given.settings.root / "close.saga.yaml"
    file.write_text(CLOSE, encoding="utf-8")
    project = Project(given.settings)
    days = ("--from", "2026-01-01", "--to", "2026-01-02", "--bulk")
    async with running_worker(project) as client:
        bank, cli = Bank(client, project, url), CommandLine(project.settings.root, capsys, client)
        first = await cli.saga("--json", "backfill", "close", *days)
        assert (first.code, first.json["started"], first.json["ended"]) == (0, 48, {"COMPLETED": 48}), first
        assert bank.states() == {
            f"close-2026-01-{day:02}T{hour:02}:00:00Z": "COMPLETED" for day in (1, 2) for hour in range(24)
        }
        listed = await cli.saga("--json", "list", "-l", "scheduled_at=2026-01-02T05:00:00Z")
        assert [saga["id"] for saga in listed.json] == ["close-2026-01-02T05:00:00Z"]

        file.write_text(CLOSE.replace("input: {at: ", "input: {note: changed, at: "), encoding="utf-8")
        again = await cli.saga("--json", "backfill", "close", "--from", "2026-01-01", "--to", "2026-01-03", "--bulk")
        assert again.code == 0, again
        assert (again.json["started"], again.json["existing"], again.json["refused"]) == (24, 48, 0)

        file.write_text(CLOSE.replace("allow_all", "skip"), encoding="utf-8")
        refused = await cli.saga("backfill", "close", *days)
        assert (refused.code, "those of close run one after the other (overlap skip)" in refused.err) == (2, True)
        few = await cli.saga("--json", "backfill", "close", *days, "--concurrency", "5")
        assert (few.code, few.json["existing"]) == (0, 48)
        await client.close()
