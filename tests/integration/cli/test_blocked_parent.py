"""Commands about a saga that a parked nested saga blocks."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sagas.errors import UsageError
from sagas.project import Project
from sagas.settings import load_settings
from tests.helpers.local_worker import running_worker
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until
from tests.integration.cli.conftest import CommandLine, fresh, write_project
from tests.integration.cli.test_start_and_show import until_shown

GROUP = """
saga: group
steps:
  - {id: bus, uses: work, compensate: unwork}
  - {id: trips, uses: saga, with: {name: trip, input: {mode: reject}}}
"""


@pytest.fixture
async def nested(
    temporal: TemporalServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> AsyncIterator[CommandLine]:
    """With a worker that also knows a saga with a nested one."""
    folder = tmp_path / "project"
    write_project(folder, temporal)
    for name, text in {"group": GROUP, "convoy": CONVOY, "fleet": FLEET}.items():
        (folder / f"{name}.saga.yaml").write_text(text)
    async with running_worker(Project(load_settings(config=str(folder / "saga.toml")))) as client:
        yield CommandLine(folder, capsys, client)


async def test_every_command_names_the_parked_child_of_a_blocked_parent(nested: CommandLine) -> None:
    id = fresh("group")
    child = f"{id}/trips"
    nested.break_undo(True)
    started = await nested.saga("start", "group", "--id", id, "--wait")
    assert started.code == 4, started
    watched = await nested.saga("watch", id, "--until", "parked", "--timeout", "60s")
    assert watched.code == 4, watched
    assert f"the nested saga {child} waits for an operator at car" in watched.out
    shown = (await nested.saga("show", id)).out
    assert "⏸ trips waits for a nested saga" in shown
    assert f"saga resolve {child} car retry --reason" in shown
    groups = await until_shown(nested, ("parked", "--saga", "group"), lambda rows: bool(rows))
    assert [(group["saga"], group["step"], group["op"], group["ids"]) for group in groups] == [
        ("trip", "car", "undo", [child])
    ]
    everything = (await nested.saga("--json", "parked")).json
    assert [row["count"] for row in everything] == [1]
    stuck = (await nested.saga("--json", "list", "--stuck", "--saga", "group")).json
    assert [row["id"] for row in stuck] == [id]
    assert stuck[0]["stuck"][0].startswith(f"trips is blocked (do): the nested saga {child} waits")
    misplaced = await nested.saga("resolve", id, "trips", "retry", "--reason", "x")
    assert misplaced.code == 9
    assert f"{child}: decide there about car" in misplaced.err

    nested.break_undo(False)
    assert (await nested.saga("resolve", child, "car", "retry", "--reason", "they agreed")).code == 0
    watched = await nested.saga("--json", "watch", id, "--until", "parked", "--timeout", "60s")
    assert (watched.code, watched.json["state"], watched.json["parked"]) == (3, "COMPENSATED", [])


CONVOY = """
saga: convoy
steps: [{id: asks, uses: saga, with: {name: ask, input: {}}}]
"""
FLEET = """
saga: fleet
steps: [{id: convoy, uses: saga, with: {name: convoy, input: {}}}]
"""


async def test_the_parents_of_a_paused_saga_say_so(nested: CommandLine) -> None:
    id = fresh("fleet")
    child = f"{id}/convoy/asks"
    assert (await nested.saga("start", "fleet", "--id", id)).code == 0

    async def has_begun() -> bool:
        with contextlib.suppress(UsageError):  # nobody knows it yet
            steps = (await nested.client.show(child))["steps"]
            return bool(steps) and steps[0]["state"] == "DONE"
        return False

    await until(has_begun)
    assert (await nested.saga("pause", child, "--reason", "the road is closed")).code == 0
    paused = f"the nested saga {child} is paused by "
    for parent, step in ((id, "convoy"), (f"{id}/convoy", "asks")):
        shown = await nested.saga("show", parent)
        assert f"{step} waits: {paused}" in shown.out, shown
        assert f"`saga resume {child}` ends it" in shown.out
    stuck = await until_shown(nested, ("list", "--stuck", "--saga", "fleet"), lambda rows: bool(rows))
    assert [(row["id"], row["stuck"][0].startswith(f"convoy waits: {paused}")) for row in stuck] == [(id, True)]
    assert (await nested.saga("resume", child)).code == 0
    assert "waits: the nested" not in (await nested.saga("show", id)).out
    await nested.client.cancel(id)


async def test_blocked_sagas_free_their_slots_in_a_bulk_start(nested: CommandLine) -> None:
    file = nested.folder / "groups.jsonl"
    file.write_text("{}\n{}\n")
    nested.break_undo(True)
    answer = await nested.saga("--json", "start", "group", "--from", str(file), "--concurrency", "1")
    assert answer.code == 4, answer
    assert answer.json["ended"] == {"PARKED": 2}
