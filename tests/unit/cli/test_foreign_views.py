"""A view with any JSON at any place is none, or can be shown and listed."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from saga_cli.commands.run.list import _cells
from saga_cli.render.saga_view import view_lines
from sagas.protocol.saga_view import SagaView

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
    view = SagaView.from_anybody(DOCUMENT)
    assert view is not None
    show(view)


@settings(max_examples=600, deadline=None)
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
    view = SagaView.from_anybody(document)
    if view is not None:
        show(view)


@given(json_values)
def test_a_document_that_is_no_view_is_none(document: Any) -> None:
    assert SagaView.from_anybody(document) is None
