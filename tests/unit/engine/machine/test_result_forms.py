"""The form of a result in the command `resolve … done`: as its action declares it, or as it was returned before."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from sagas import BatchStep, Item, Step, action
from sagas.protocol.outcomes import Outcome
from tests.helpers.local_worker import make_project
from tests.unit.engine.machine.driver import MachineDriver, op, saga, step


@dataclass
class Seat:
    row: int


class Flight(BaseModel):
    number: str


FORMS = [
    (list[Seat], "[{…}]"),
    (list[dict[str, Any]], "[{…}]"),
    (tuple[str, ...], '["…"]'),
    (list[list[int]], "[[…]]"),
    (list, "[…]"),
    (set[datetime], '["…"]'),
    (list[Flight] | None, "[{…}]"),
    (str, '"…"'),
    (Decimal, "…"),
    (bool, "true"),
    (Seat, "{…}"),
    (Flight, "{…}"),
    (Any, "{…}"),
    (int | str, "{…}"),
    (None, "{…}"),
]

TEXT = """
saga: formed
steps:
  - {id: a, uses: forms.act, on_failure: park, compensate: forms.act}
"""


def advised(driver: MachineDriver) -> str:
    (parked,) = driver.run().story["parked"]
    (done,) = [command for command in parked["commands"] if " done " in command]
    words = shlex.split(done)
    return words[words.index("--result") + 1]


@pytest.mark.parametrize(("returned", "form"), FORMS)
def test_an_action_declares_its_form(returned: Any, form: str, tmp_path: Path) -> None:
    def act(step: Step) -> Any:
        return None

    def nothing(step: Step) -> None:
        return None

    act.__annotations__["return"] = returned
    project = make_project(tmp_path, {"formed": TEXT}, [action("forms.act")(act)], address="127.0.0.1:1")
    definition = project.definition("formed")
    assert advised(MachineDriver(definition, {}, {"a": "rejected"})) == form
    other = make_project(tmp_path, {"formed": TEXT}, [action("forms.act")(nothing)], address="127.0.0.1:1")
    assert other.definition("formed").digest == definition.digest


def test_a_batch_action_declares_none(tmp_path: Path) -> None:
    async def act(step: BatchStep, items: list[Item]) -> list[Any]:
        return []

    made = action("forms.act", connection="shop", batch=True)(act)
    project = make_project(
        tmp_path, {"formed": TEXT}, [made], address="127.0.0.1:1", connections={"shop": "sqlite:///x.db"}
    )
    assert advised(MachineDriver(project.definition("formed"), {}, {"a": "rejected"})) == "{…}"


@pytest.mark.parametrize(("declared", "form"), [(None, '["…"]'), ('"…"', '"…"')])
def test_other_items_show_the_form_that_is_not_declared(declared: str | None, form: str) -> None:
    item = step("a", do=op("list", {}, on="shop"), on_failure="park", for_each=[1, 2], max_parallel=1)
    answers = {"a#0": Outcome.done(["x"]), "a#1": "rejected"}
    driver = MachineDriver(saga(replace(item, result_form=declared)), {}, answers)
    assert advised(driver) == form
