"""An action raises exceptions of classes that accept no attributes, inside a guarded transaction and outside of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sagas import Rejected, Step, action
from tests.helpers.local_worker import make_project, running_worker
from tests.helpers.processes import TemporalServer
from tests.integration.engine.environment import GRACE, open_environment, row, run_saga


@dataclass(frozen=True)
class OutOfStock(Rejected):
    sku: str


@dataclass(frozen=True)
class Jammed(Exception):
    sku: str


@action("classes.rejects", connection="shop")
async def rejects(step: Step) -> None:
    await step.sql.execute("insert into effects values (:what)", {"what": step.id})
    raise OutOfStock("A-1")


@action("classes.fails", connection="shop")
def fails(step: Step) -> None:
    step.sql.execute("insert into effects values (:what)", {"what": step.id})
    raise Jammed("A-1")


@action("classes.elsewhere", idempotent=True)
async def elsewhere(step: Step) -> None:
    if step.op == "do":
        raise Jammed("A-1")


STEPS = """
  - {id: bad, uses: classes.NAME, retry: {max_attempts: 2, initial_interval: 10ms}, compensate: classes.NAME}
"""


async def test_the_class_the_text_and_the_place_reach_the_story(temporal: TemporalServer, tmp_path: Path) -> None:
    shop = await open_environment(tmp_path, temporal.address)
    names = ("rejects", "fails", "elsewhere")
    project = make_project(
        tmp_path / "project",
        {f"classes-{name}": f"saga: classes-{name}\nsteps:{STEPS.replace('NAME', name)}" for name in names},
        [rejects, fails, elsewhere],
        address=temporal.address,
        connections={"shop": shop.url},
    )
    stories: dict[str, dict[str, Any]] = {}
    async with running_worker(project, grace=GRACE) as client:
        for name in names:
            stories[name] = await run_saga(client, f"classes-{name}")
    rejected = stories["rejects"]
    assert (rejected["state"], row(rejected, "bad")["attempts"]) == ("COMPENSATED", 1)
    assert (rejected["reason"]["type"], rejected["reason"]["message"]) == ("Rejected", "A-1")
    for name, function in (("fails", fails), ("elsewhere", elsewhere)):
        bad = row(stories[name], "bad")
        assert (stories[name]["state"], bad["attempts"]) == ("COMPENSATED", 2)
        assert (bad["error"]["type"], bad["error"]["message"]) == ("Jammed", "A-1")
        line = function.__code__.co_firstlineno + 3
        assert bad["error"]["details"]["raised_at"].endswith(f"test_author_error_classes.py:{line}")
