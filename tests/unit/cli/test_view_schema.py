"""The published schema of `saga show` is that of the model, and views of all kinds fit it."""

from __future__ import annotations

import json

import pytest
from jsonschema import Draft202012Validator

from sagas.machine.view import blank_view
from sagas.protocol.saga_view import SagaView
from sagas.simulation.script import Script
from sagas.simulation.simulator import simulate
from tests.unit.cli.view_schema import PAGE, SCHEMA, problems, render, render_schema, schema
from tests.unit.engine.machine.driver import saga, step


def test_the_committed_schema_is_that_of_the_model() -> None:
    assert SCHEMA.read_text(encoding="utf-8") == render_schema(), "run `python -m tests.unit.cli.reference_page`"
    Draft202012Validator.check_schema(schema())


def test_the_page_lists_the_fields_of_the_model() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "run `python -m tests.unit.cli.reference_page`"


@pytest.mark.parametrize("outcome", ["done", "rejected", "failed", "unknown", "late"])
@pytest.mark.parametrize("key", ["a#0", "b", "p", "a#0/undo"])
def test_a_simulated_saga_fits_the_schema(key: str, outcome: str) -> None:
    definition = saga(step("a", for_each="${{ input.items }}"), step("b"), step("p", kind="pivot"), step("r"))
    outcomes = {key: outcome} | ({"b": "rejected"} if key.endswith("undo") else {})
    document = json.loads(json.dumps(simulate(definition, {"items": [1, 2]}, Script(outcomes)).document))
    assert problems(document) == []
    assert SagaView.from_json(document).to_json() == document


def test_a_view_that_knows_almost_nothing_fits_the_schema() -> None:
    assert problems(blank_view("s-1", "shop").to_json()) == []
    assert problems(SagaView(id="s-1", saga="shop", state="TERMINATED", incomplete="nobody answers").to_json()) == []


def test_a_document_of_another_version_can_be_read() -> None:
    document = {**blank_view("s-1", "shop").to_json(), "new": 1, "steps": [{"new": 1, **_OLD_STEP}]}
    del document["notifications"]
    document["labels"] = None
    view = SagaView.from_json(document)
    assert (view.notifications, view.labels, view.steps[0].guarantee) == ((), {}, "at-least-once")
    assert problems(view.to_json()) == []


_OLD_STEP = {"id": "a", "step": "a", "uses": "work", "state": "DONE"}


def test_what_is_missing_or_unknown_is_a_difference() -> None:
    document = blank_view("s-1", "shop").to_json()
    assert problems({**document, "more": 1})
    assert problems({name: value for name, value in document.items() if name != "steps"})
    assert problems({name: value for name, value in document.items() if name != "steps"}, without=("steps",)) == []
    assert problems({**document, "state": "LOST"})
    assert problems({**document, "generation": "1"})
