"""The pytest plugin for testing sagas in memory, without a server, and their undos on a copy of the databases.

::

    def test_declined(saga):
        run = saga.run("checkout", BASKET, outcomes={"charge": "rejected"})
        assert run.state == "COMPENSATED" and run.undone == ["reserve#1", "reserve#0"]

    def test_every_failure(saga):
        saga.check_all("checkout", BASKET)

pytest loads the plugin in every run of the environment, so the engine is imported only when the fixture is used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sagas.text.shell import saga_command

if TYPE_CHECKING:
    from saga_workers.undo_check.undo_report import UndoReport
    from sagas.project import Project
    from sagas.simulation import FailurePoint, SimulatedRun


class Sagas:
    """The sagas of one project: the value of the fixture ``saga``."""

    def __init__(self, project: Project) -> None:
        self.project = project

    def run(
        self,
        name: str,
        input: Any = None,
        outcomes: Mapping[str, str | Sequence[str]] | None = None,
        results: Mapping[str, Any] | None = None,
        signals: Mapping[str, Any] | None = None,
        cancel_at: str | None = None,
    ) -> SimulatedRun:
        """Run a saga with the given outcomes; every call without one is done.

        Args:
            name: the saga.
            input: its input; None generates one from the schema.
            outcomes: by step (``charge``), item (``reserve#1``) or operation (``charge/undo``, ``charge/confirm``):
                ``rejected``, ``failed``, ``unknown``, ``crash after effect``, ``late``, ``done``, or a list of them for
                consecutive calls.
            results: results by step or item; the others are generated from how the definition uses them. Those of
                steps of other sagas of the project have no effect, so that tests can share them.
            signals: the data of the signals that `wait` steps receive, by the signal's name.
            cancel_at: cancel the saga while this step is in flight.

        Returns:
            ``state``, ``undone`` (entry ids in the order undone), ``output``, ``reason``, ``steps``, ``parked``,
            ``residue``, ``notifications`` (recorded, not delivered) and ``document``, that of `saga show`.

        Raises:
            UsageError: the saga, a step, an item, a signal or an outcome does not exist, or the input is not valid.
        """
        from sagas.simulation import Script, environment_of, sample_input, simulate

        definition = self.project.definition(name)
        script = Script(outcomes or {}, results or {}, signals or {}, cancel_at, input_is_sample=input is None)
        outside = environment_of(self.project)
        given = sample_input(definition, outside) if input is None else input
        return simulate(definition, given, script, outside)

    def check_all(
        self,
        name: str,
        input: Any = None,
        results: Mapping[str, Any] | None = None,
        signals: Mapping[str, Any] | None = None,
    ) -> list[FailurePoint]:
        """Run every failure point, as `saga simulate` does; the test fails when one leaves a residue."""
        __tracebackhide__ = True
        from sagas.simulation import Script, environment_of, failure_points, sample_input

        definition = self.project.definition(name)
        script = Script(results=results or {}, signals=signals or {}, input_is_sample=input is None)
        outside = environment_of(self.project)
        given = sample_input(definition, outside) if input is None else input
        cells = failure_points(definition, given, script, outside)
        bad = [cell for cell in cells if cell.residue]
        if bad:
            pytest.fail(_complaint(name, bad, len(cells)), pytrace=False)
        return cells

    def verify_undo(
        self, name: str, input: Any = None, results: Mapping[str, Any] | None = None, limit: int = 100
    ) -> UndoReport:
        """Run the undos on a copy of the databases, as `saga verify-undo` does; the test fails if they leave something.

        It also fails if a run does not undo what it undoes in `saga simulate`, or the saga has undos and none of them
        could be verified. The databases of saga.toml must run.

        Args:
            name: the saga.
            input: an input with which it completes on the databases; None generates one from the schema.
            results: results of steps that are not run, such as `http`; the others are generated.
            limit: the maximum number of orders that are run.
        """
        __tracebackhide__ = True
        from saga_workers.undo_check.problem_lines import problem_lines
        from saga_workers.undo_check.undo_check import GivenInput, verify_undo
        from sagas.simulation import environment_of, sample_input

        definition = self.project.definition(name)
        made_up = input is None
        given = sample_input(definition, environment_of(self.project)) if made_up else input
        inputs = [GivenInput(given, "of the test", is_sample=made_up)]
        # In a thread, as the test may run in an event loop.
        with ThreadPoolExecutor(1) as thread:
            verification = verify_undo(self.project, definition, inputs, results, limit)
            report = thread.submit(asyncio.run, verification).result()
        if report.differs:
            lines = [f"problems of the undos of {name}:", *problem_lines(report)]
            pytest.fail("\n  ".join(lines), pytrace=False)
        if report.verifies_nothing:
            reasons = [f"{step.step}: {step.why}" for step in report.steps]
            pytest.fail("\n  ".join([f"no undo of {name} could be verified:", *reasons]), pytrace=False)
        return report


def _complaint(name: str, bad: Sequence[FailurePoint], total: int) -> str:
    lines = [f"{name} leaves a residue at {len(bad)} of {total} failure points:"]
    for cell in bad:
        for row in cell.residue:
            what = "an effect stays" if row["kind"] == "effect_stays" else "an effect is missing"
            lines.append(f"  {cell.step}, {cell.fault}: {cell.state}, but {what}: {row['step']} ({row['system']})")
    table, guarantees = saga_command("simulate", name), saga_command("explain", name)
    lines.append(f"`{table}` shows the whole table, `{guarantees}` each step's guarantee.")
    return "\n".join(lines)


_PROJECTS = pytest.StashKey[dict[Path, "Project"]]()


@pytest.fixture
def saga(request: pytest.FixtureRequest) -> Sagas:
    """The sagas of the test's project: the nearest saga.toml in the test's folder or above it."""
    from sagas.project import Project
    from sagas.settings import load_settings

    projects = request.config.stash.setdefault(_PROJECTS, {})
    folder = request.path.parent
    if folder not in projects:
        projects[folder] = Project(load_settings(folder))
    return Sagas(projects[folder])
