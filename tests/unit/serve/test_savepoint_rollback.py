"""A rollback that stops at a savepoint is not shown as one of the whole saga, and can still be cancelled."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from saga_cli.render.saga_view import view_lines
from saga_workers.serve.console.possible_requests import possible_requests
from saga_workers.serve.console.progress import progress_of
from sagas.definition.model import Savepoint
from sagas.presentation.remaining_steps import undone_steps
from tests.unit.engine.machine.driver import MachineDriver, saga, step

LINE = saga(step("a"), step("b", savepoint=Savepoint(3, 60.0)), step("c"), step("d"))


def rolled_back(hold: set[str]) -> MachineDriver:
    return MachineDriver(LINE, answers={"d": "rejected"}, hold=hold).start()


@pytest.mark.parametrize(
    ("hold", "undone", "still"), [({"c~undo"}, [], ["c"]), (set(), ["c"], [])], ids=["undoing", "waiting"]
)
def test_the_rollback_leaves_the_steps_before_the_savepoint(
    hold: set[str], undone: list[str], still: list[str]
) -> None:
    view = rolled_back(hold).machine.view()
    assert view.repeated_from is not None
    assert view.repeated_from.to_json() == {"step": "b", "runs": 1, "attempts": 3, "undoing": ["c", "d"]}
    assert undone_steps(view) == (undone, still)
    progress = progress_of(view)
    assert (progress.finished, progress.remaining) == (undone, still)
    assert progress.undo_note == (
        "Then what follows the savepoint b runs again (run 2 of 3). A cancel would undo all steps."
    )
    assert possible_requests(view) == ("cancel", "pause")
    shown = "\n".join("".join(text for text, _ in line) for line in view_lines(view, now=datetime.now(UTC)))
    assert "undone up to the savepoint b, then what follows it runs again (run 2 of 3)" in shown


def test_a_cancel_makes_it_a_rollback_of_the_whole_saga() -> None:
    driver = rolled_back({"c~undo"})
    driver.cancel()
    view = driver.machine.view()
    assert view.repeated_from is None
    assert undone_steps(view) == ([], ["a", "b", "c"])
    assert progress_of(view).undo_note == ""
    assert possible_requests(view) == ("pause",)
