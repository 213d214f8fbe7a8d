"""A pivot whose method is computed, and turns out to be one that only reads."""

from __future__ import annotations

import pytest

from sagas.definition.loader import parse_text
from sagas.definition.model import Definition
from sagas.definition.parser.draft import ProjectContext
from tests.unit.engine.machine.driver import MachineDriver

CALLED = """
saga: called
input: {type: object, required: [method], properties: {method: {type: string}}}
steps:
  - {id: a, uses: http, with: {connection: c, method: POST, path: /a}, compensate: {uses: http, with: {connection: c,
     method: DELETE, path: /a}}}
  - {id: p, uses: http, with: {connection: c, method: "${{ input.method }}", path: /p}, pivot: true}
"""


def called() -> Definition:
    definition, diagnostics = parse_text(CALLED, "called.saga.yaml", ProjectContext({}, {"c": {"kind": "http"}}))
    assert definition is not None, diagnostics
    return definition


@pytest.mark.parametrize("method", ["GET", "head"])
def test_a_method_that_only_reads_undoes_the_saga_before_the_call(method: str) -> None:
    driver = MachineDriver(called(), {"method": method}, {"p": "unknown"}).run()
    assert (driver.state, driver.log) == ("COMPENSATED", ["a", "a~undo"])
    reason = driver.story["reason"]
    assert (reason["kind"], reason["step"]) == ("definition", "p")
    assert reason["message"] == f"p.method: {method} only reads, so `p` cannot be the pivot"


def test_one_that_writes_is_called() -> None:
    driver = MachineDriver(called(), {"method": "PUT"}).run()
    assert (driver.state, driver.log) == ("COMPLETED", ["a", "p"])
