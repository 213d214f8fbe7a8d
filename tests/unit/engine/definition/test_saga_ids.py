"""The one function that decides which ids a saga may have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sagas.definition.saga_ids import check_saga_id, saga_id_problem, workflow_id_problem
from sagas.errors import UsageError
from sagas.input_limits import MAX_SAGA_ID_BYTES, MAX_WORKFLOW_ID_BYTES
from sagas.protocol.payloads import UNDO_SUFFIX, idempotency_key, notification_workflow_id

HOSTILE = st.text(
    st.one_of(
        st.characters(codec=None),
        st.sampled_from("~/#@ \0\n\x1b\x7f\x9b\u202e\u2028\ud800\udc80\U0001f600a0"),
    ),
    max_size=40,
)


@pytest.mark.parametrize(
    ("id", "reason"),
    [
        ("", "is empty"),
        (" \t ", "is empty"),
        ("a/b#0", "must not contain /, which marks nested sagas"),
        ("/", "must not contain /"),
        ("x~undo", "must not end in ~undo, which marks the undo of a saga"),
        ("x~notify-0-completed", "must not contain ~"),
        ("x~undo@2", "must not contain ~"),
        ("a\nb", "the id a\\nb must not contain control characters"),
        ("a\0b", "control characters"),
        ("\x1b[2J", "control characters"),
        ("a\x9b1m", "control characters"),
        ("gpj\u202eexe", "control characters"),
        ("a\u2028b", "control characters"),
        ("a ", "begin or end with white space"),
        ("a\ud800", "the id a\\ud800 cannot be encoded in UTF-8"),
        ("\udcffa", "cannot be encoded in UTF-8"),
        ("a" * 513, "has 513 bytes; the maximum is 512"),
        ("\U0001f600" * 129, "has 516 bytes; the maximum is 512"),
        ("a" * 1_000_000, "has 1000000 bytes"),
    ],
)
def test_an_id_that_no_saga_may_have_is_refused_with_a_reason(id: str, reason: str) -> None:
    problem = saga_id_problem(id)
    assert problem is not None
    assert reason in problem
    assert len(problem) < 600
    assert problem.isprintable()
    with pytest.raises(UsageError):
        check_saga_id(id)


@pytest.mark.parametrize(
    "id", ["order-1", "of #1 ü", "a@2", "2024:17", "日本", "a.b_c(d)+e", "👩‍👩‍👧", "a" * 512, "x-undo"]
)
def test_usual_ids_are_accepted(id: str) -> None:
    assert check_saga_id(id) == id


@pytest.mark.parametrize("id", [None, 5, b"order", ["a"]])
def test_an_id_is_a_string(id: object) -> None:
    with pytest.raises(UsageError, match="must be a string"):
        check_saga_id(id)


@pytest.mark.parametrize(
    ("id", "owner"),
    [
        ("p/c", "p"),
        ("p/c#3@2", "p"),
        ("p/c~undo", "p"),
        ("p/c~undo", "p~undo"),
        ("p/c/d", "p/c"),
        ("p/c/d~undo", "p/c~undo"),
        ("p~undo", "p"),
        ("p~notify-0-completed@2", "p"),
        ("p~notify-0-compensated", "p~undo"),
    ],
)
def test_the_engine_gives_such_ids_to_runs_of_their_owner_only(id: str, owner: str) -> None:
    assert saga_id_problem(id, owner=owner) is None
    assert saga_id_problem(id) is not None
    assert saga_id_problem(id, owner="q") is not None
    assert saga_id_problem(id, owner=owner[:-1]) is not None


def test_a_workflow_id_longer_than_temporal_accepts_is_refused_for_nested_sagas_too() -> None:
    owner = "p" * MAX_SAGA_ID_BYTES
    assert saga_id_problem(f"{owner}/{'c' * 400}", owner=owner) is None
    assert "1113 bytes" in (saga_id_problem(f"{owner}/{'c' * 600}", owner=owner) or "")


@given(HOSTILE)
def test_no_accepted_id_is_that_of_a_run_of_another_saga(id: str) -> None:
    if saga_id_problem(id) is None:
        assert len(id.encode()) <= MAX_SAGA_ID_BYTES
        assert workflow_id_problem(id) is None
        assert not any(mark in id for mark in "~/\0\n")


@given(HOSTILE, st.sampled_from(["c", "c#0"]), st.integers(1, 3))
def test_the_ids_that_the_engine_derives_from_an_accepted_id_are_refused_for_others(
    id: str, entry: str, generation: int
) -> None:
    if saga_id_problem(id) is not None:
        return
    derived = [idempotency_key(id, entry, generation), notification_workflow_id(id, "notify-0-parked", generation)]
    for run in (*derived, id + UNDO_SUFFIX, derived[0] + UNDO_SUFFIX):
        assert saga_id_problem(run, owner=id) is None
        assert saga_id_problem(run) is not None
        assert len(run.encode()) <= MAX_WORKFLOW_ID_BYTES


@given(HOSTILE, st.none() | HOSTILE)
def test_every_text_gets_an_answer_that_can_be_printed(id: str, owner: str | None) -> None:
    for problem in (saga_id_problem(id, owner=owner), workflow_id_problem(id)):
        assert problem is None or problem.encode()
