"""Python actions that use the engine wrongly: one attempt, and one sentence that says what to correct."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sagas import Step, action
from tests.helpers.local_worker import make_project, running_worker
from tests.helpers.processes import TemporalServer
from tests.integration.engine.environment import GRACE, open_environment, row, run_saga

NO_DATABASE = "it has no database for step.sql and step.emit; declare it with @action(…, connection=…)"
BY_NAME = "step.sql takes its parameters by name: write `:name` in the statement"


@action("misused.none")
async def without_database(step: Step) -> None:
    await step.sql.execute("delete from effects")


@action("misused.emit")
def emit_without_database(step: Step) -> None:
    step.emit("orders", value={})


@action("misused.one", connection="shop")
async def one_position(step: Step) -> None:
    await step.sql.execute("insert into effects values (%s)", step.id)


@action("misused.two", connection="shop")
def two_positions(step: Step) -> None:
    step.sql.all("select * from effects where what = ? and what <> ?", step.id, "b")


@action("misused.row", connection="shop")
async def row_of_values(step: Step) -> None:
    await step.sql.scalar("select 1 from effects where what = $1", [(step.id,)])


@action("misused.fine", connection="shop")
async def fine(step: Step) -> None:
    if step.op == "do":
        await step.sql.execute("insert into effects values (:what)", {"what": step.id})


@action("misused.fails", idempotent=False)
async def fails(step: Step) -> None:
    raise ConnectionError("lost")


PLACES: dict[str, tuple[str, str, str, str]] = {
    "do": ("- {id: bad, uses: misused.none, compensate: misused.fine}", "COMPENSATED", "", NO_DATABASE),
    "emit": ("- {id: bad, uses: misused.emit, compensate: misused.fine}", "COMPENSATED", "", "the function emit_"),
    "after": ("- {id: a, uses: misused.fine, pivot: true}\n- {id: bad, uses: misused.none}", "PARKED", "", NO_DATABASE),
    "undo": (
        "- {id: bad, uses: misused.fine, compensate: misused.none}\n- {id: no, uses: require, with: {that: false}}",
        "PARKED",
        "compensation",
        NO_DATABASE,
    ),
    "confirm": (
        "- {id: bad, uses: misused.fine, compensate: misused.fine, confirm: misused.none}",
        "PARKED",
        "confirmation",
        NO_DATABASE,
    ),
    "probe": (
        "- {id: bad, uses: misused.fails, retry: {max_attempts: 1}, compensate: misused.fine, probe: misused.none}",
        "PARKED",
        "probe",
        NO_DATABASE,
    ),
    "one": ("- {id: bad, uses: misused.one, compensate: misused.fine}", "COMPENSATED", "", BY_NAME),
    "two": ("- {id: bad, uses: misused.two, compensate: misused.fine}", "COMPENSATED", "", BY_NAME),
    "row": ("- {id: bad, uses: misused.row, compensate: misused.fine}", "COMPENSATED", "", BY_NAME),
}


@pytest.mark.sampled(keep=4)
@pytest.mark.parametrize("place", PLACES)
async def test_a_misuse_ends_or_parks_with_its_first_attempt(
    place: str, temporal: TemporalServer, tmp_path: Path
) -> None:
    steps, state, operation, message = PLACES[place]
    shop = await open_environment(tmp_path, temporal.address)
    indented = steps.replace("\n", "\n  ")
    project = make_project(
        tmp_path / "project",
        {f"misused-{place}": f"saga: misused-{place}\nsteps:\n  {indented}\n"},
        [without_database, emit_without_database, one_position, two_positions, row_of_values, fine, fails],
        address=temporal.address,
        connections={"shop": shop.url},
    )
    async with running_worker(project, grace=GRACE) as client:
        story: dict[str, Any] = await run_saga(client, f"misused-{place}")
    bad = row(story, "bad")
    assert story["state"] == state
    if operation == "probe":
        assert message in str(story["parked"][0])
        return
    failed = bad[operation] if operation else bad
    assert failed["attempts"] == 1
    assert message in failed["error"]["message"]
    assert failed["error"]["message"].startswith("step bad: the function ")
    assert " in test_misused_actions.py: " in failed["error"]["message"]
