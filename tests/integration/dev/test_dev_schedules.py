"""`saga dev up` makes the schedules of the definitions in the embedded Temporal, as it makes topics and tables."""

from __future__ import annotations

import json
from typing import Any

from tests.integration.dev.conftest import Project

CLOSE_DAY = """
saga: close-day
input: {type: object, required: [day], properties: {day: {type: string}}}
triggers:
  schedule: {cron: "30 2 * * *", input: {day: "${{ trigger.scheduled_date }}"}}
steps:
  - {id: wait, uses: wait, with: {signal: closed}}
"""


def test_schedules_are_created_and_updated(project: Project) -> None:
    file = project.root / "definitions" / "close-day.saga.yaml"
    file.parent.mkdir()
    file.write_text(CLOSE_DAY, encoding="utf-8")

    def up() -> str:
        return project.call("dev", "up", "--only", "temporal").stdout

    def schedules() -> list[Any]:
        return [
            (schedule["saga"], schedule["cron"], schedule["need"])
            for schedule in json.loads(project.saga("schedule", "list", "-o", "json"))
        ]

    assert "schedule of close-day created" in up()
    assert schedules() == [("close-day", "30 2 * * *", None)]
    assert "schedule of close-day" not in up()
    file.write_text(CLOSE_DAY.replace("30 2", "45 3"), encoding="utf-8")
    assert "schedule of close-day updated: the definition has changed" in up()
    assert schedules() == [("close-day", "45 3 * * *", None)]
