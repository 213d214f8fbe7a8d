"""`saga cancel`, `signal`, `parked`, `resolve` against a real server."""

from __future__ import annotations

import json

import pytest

from tests.integration.cli.conftest import TRIP, Shell, fresh
from tests.integration.cli.test_start_and_show import until


async def park(shell: Shell, name: str = "stuck") -> str:
    """A saga whose first undo is rejected: it waits for a person."""
    id = fresh(name)
    shell.break_undo(True)
    answer = await shell.saga("start", "trip", "--id", id, "--set", "mode=reject", "--wait")
    assert answer.code == 4, answer
    return id


async def test_a_parked_saga_tells_everything_a_person_needs(shell: Shell) -> None:
    id = await park(shell)
    shown = (await shell.saga("show", id)).out
    assert "⏸ car waits for a person" in shown
    assert "its compensation" in shown
    assert "the other side says no" in shown
    assert "since" in shown
    assert f"saga resolve {id} car retry --reason" in shown
    assert "remains  hotel, car" in shown
    groups = await until(shell, ("parked",), lambda rows: bool(rows))
    assert [(one["saga"], one["step"], one["op"], one["count"]) for one in groups] == [("trip", "car", "undo", 1)]
    assert groups[0]["ids"] == [id]
    stuck = (await shell.saga("--json", "list", "--stuck")).json
    assert stuck[0]["stuck"][0].startswith("car is parked (undo)")


async def test_retry_goes_on_where_it_was_stuck(shell: Shell) -> None:
    id = await park(shell)
    shell.break_undo(False)
    tried = await shell.saga("--json", "resolve", id, "car", "retry", "--reason", "mended", "--dry-run")
    assert tried.json["next"] == ["undo car: call unwork"]
    answer = await shell.saga("resolve", id, "car", "retry", "--reason", "mended", "--as", "anna")
    assert answer.code == 0, answer
    ended = await shell.saga("--json", "watch", id)
    assert ended.code == 3
    assert ended.json["operator"][0]["who"] == "anna"
    assert "anna: retry car, because mended" in (await shell.saga("show", id)).out
    late = await shell.saga("resolve", id, "car", "retry", "--reason", "again")
    assert late.code == 9
    assert "is over" in late.err


async def test_a_skipped_undo_ends_in_residue(shell: Shell) -> None:
    id = await park(shell)
    shell.break_undo(False)
    answer = await shell.saga("resolve", id, "car", "skip", "--reason", "written off", "--yes")
    assert answer.code == 0
    ended = await shell.saga("watch", id)
    assert ended.code == 5
    assert "car: its effect stays" in (await shell.saga("show", id)).out


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("car", "compensate", "--reason", "x"), 9, "not possible"),
        (("car", "done", "--reason", "x"), 9, "needs --evidence"),
        (("cra", "retry", "--reason", "x"), 9, "did you mean car"),
        (("hotel", "retry", "--reason", "x"), 9, "a person decides only"),
        (("car", "retry"), 2, "--reason is missing"),
        (("car", "rety", "--reason", "x"), 2, "did you mean retry?"),
        (("car", "retry", "--reason", "x", "--with", "{"), 2, "not JSON"),
        (("car", "retry", "--reason", "x", "--with", "[1]"), 2, "is a JSON object"),
        (("car", "retry", "--reason", "x", "--result", "1"), 2, "--result goes with `done`"),
        (("car", "retry", "--reason", "x", "--definition", "/nowhere.yaml"), 2, "cannot be read"),
        (("car",), 2, "takes ID STEP DECISION"),
    ],
)
async def test_a_decision_that_cannot_be_is_one_sentence(
    shell: Shell, words: tuple[str, ...], code: int, sentence: str
) -> None:
    id = await park(shell)
    answer = await shell.saga("resolve", id, *words)
    assert answer.code == code, answer
    assert sentence in answer.err


async def test_the_definition_can_be_mended_in_flight(shell: Shell) -> None:
    id = await park(shell)
    mended = shell.folder / "mended.yaml"
    mended.write_text(TRIP.replace("compensate: unwork", "compensate: work", 1).replace("Book the", "Take the"))
    shell.break_undo(False)
    words = ("resolve", id, "car", "retry", "--reason", "mended", "--definition", str(mended))
    answer = await shell.saga(*words)
    assert answer.code == 0, answer
    story = (await shell.saga("--json", "watch", id)).json
    assert story["state"] == "COMPENSATED"
    assert story["steps"][0]["name"] == "Take the hotel"


async def test_one_decision_for_many(shell: Shell) -> None:
    ids = {await park(shell), await park(shell)}
    groups = await until(shell, ("parked",), lambda rows: bool(rows) and rows[0]["count"] == 2)
    assert groups[0]["command"].startswith("saga resolve --where")
    shell.break_undo(False)
    where = ("--where", "WorkflowType = 'trip'")
    nothing = await shell.saga("resolve", *where, "car", "retry", "--reason", "x", "--error", "no such text", "--yes")
    assert "nothing that is parked fits" in nothing.out
    unasked = await shell.saga("resolve", *where, "car", "retry", "--reason", "mended")
    assert unasked.code == 2
    assert "--yes" in unasked.err
    answer = await shell.saga(
        "--json", "resolve", *where, "car", "retry", "--reason", "mended", "--op", "undo", "--yes"
    )
    assert answer.code == 0, answer
    assert {row["id"] for row in answer.json} == ids
    for id in ids:
        assert (await shell.saga("watch", id)).code == 3


async def test_cancel_undoes_and_past_the_pivot_is_refused(shell: Shell) -> None:
    id = fresh("cancelled")
    await shell.saga("start", "ask", "--id", id)
    answer = await shell.saga("cancel", id, "--reason", "not wanted", "--as", "ben")
    assert answer.code == 0, answer
    assert (await shell.saga("watch", id)).code == 6
    assert (await shell.saga("cancel", id)).code == 9

    order = fresh("order")
    await shell.saga("start", "order", "--set", f'number="{order}"')
    await until(shell, ("show", order), lambda story: story["state"] == "COMMITTED")
    refused = await shell.saga("cancel", order)
    assert refused.code == 9, refused
    assert "past the point of no return" in refused.err
    await shell.saga("signal", order, "delivered")
    assert (await shell.saga("watch", order)).code == 0


async def test_cancel_many(shell: Shell) -> None:
    ids = {fresh("many") for _ in range(3)}
    for id in ids:
        await shell.saga("start", "ask", "--id", id)
    await until(shell, ("list", "--state", "RUNNING"), lambda rows: len(rows) == 3)
    assert (await shell.saga("cancel", "--where", "WorkflowType = 'ask'")).code == 2  # nobody can say yes
    answer = await shell.saga("--json", "cancel", "--where", "WorkflowType = 'ask'", "--yes")
    assert {row["id"] for row in answer.json} == ids
    for id in ids:
        assert (await shell.saga("watch", id)).code == 6


async def test_cancel_many_asks_those_after_a_refusal_too(shell: Shell) -> None:
    first, order, last = fresh("many"), fresh("order"), fresh("many")
    await shell.saga("start", "ask", "--id", first)
    await shell.saga("start", "order", "--set", f'number="{order}"')
    await until(shell, ("show", order), lambda story: story["state"] == "COMMITTED")
    await shell.saga("start", "ask", "--id", last)
    await until(shell, ("list", "--state", "RUNNING,COMMITTED"), lambda rows: len(rows) == 3)
    answer = await shell.saga("--json", "cancel", "--where", "StartTime > '2000-01-01T00:00:00Z'", "--yes")
    assert answer.code == 9, answer
    assert {row["id"]: row["answer"] for row in answer.json} == {first: "accepted", order: "refused", last: "accepted"}
    for id in (first, last):
        assert (await shell.saga("watch", id)).code == 6
    assert (await shell.saga("cancel", "--where", "WorkflowType = 'ask'", "--wait")).code == 2


async def test_a_signal_can_say_no(shell: Shell) -> None:
    id = fresh("asked")
    await shell.saga("start", "ask", "--id", id)
    assert (await shell.saga("signal", id, "approve", "--reject", "too dear", "--as", "cleo")).code == 0
    assert (await shell.saga("watch", id)).code == 3
    story = (await shell.saga("--json", "show", id)).json
    assert story["reason"]["kind"] == "rejected"
    assert "too dear" in json.dumps(story["reason"])
    assert (await shell.saga("signal", id, "approve")).code == 9


async def test_a_signal_that_no_wait_takes_is_refused(shell: Shell) -> None:
    id = fresh("ask")
    await shell.saga("start", "ask", "--id", id)
    answer = await shell.saga("signal", id, "aprove")
    assert answer.code == 2, answer
    assert "did you mean approve?" in answer.err
    assert "it waits for approve" in answer.err
    none = fresh("order")
    await shell.saga("start", "order", "--id", none, "--set", f"number={none}")
    # Early or not, the name of a later `wait` is right.
    assert (await shell.saga("signal", none, "delivered")).code == 0
    assert (await shell.saga("signal", id, "approve")).code == 0
    assert (await shell.saga("watch", id)).code == 0


async def test_a_signal_to_a_saga_that_cannot_be_asked_is_sent_and_says_so(lonely: Shell) -> None:
    id = fresh("ask")
    await lonely.saga("start", "ask", "--id", id)
    answer = await lonely.saga("signal", id, "anything")
    assert answer.code == 0, answer
    assert "could not be asked whether it waits for anything" in answer.err


async def test_a_terminated_wait_is_no_open_effect(shell: Shell) -> None:
    id = fresh("ask")
    await shell.saga("start", "ask", "--id", id)
    await until(shell, ("show", id), lambda story: story["steps"][1]["state"] == "RUNNING")
    await shell.client.temporal.get_workflow_handle(id).terminate("a test")
    stuck = await until(shell, ("list", "--stuck"), lambda rows: id in [row["id"] for row in rows])
    assert [row["stuck"] for row in stuck if row["id"] == id] == [["terminated with open effects: hold"]]


async def test_a_listed_open_saga_is_its_story_without_steps(shell: Shell) -> None:
    waiting, parked = fresh("ask"), await park(shell)
    await shell.saga("start", "ask", "--id", waiting)
    await until(shell, ("show", waiting), lambda story: story["steps"][1]["state"] == "RUNNING")
    listed = await until(shell, ("list",), lambda rows: {waiting, parked} <= {row["id"] for row in rows})
    for id in (waiting, parked):
        story = (await shell.saga("--json", "show", id)).json
        del story["steps"]
        assert [row for row in listed if row["id"] == id] == [story]


async def test_a_listed_saga_that_nobody_can_ask_says_that_it_is_incomplete(lonely: Shell) -> None:
    id = fresh("ask")
    await lonely.saga("start", "ask", "--id", id)
    listed = await until(lonely, ("list",), lambda rows: bool(rows))
    assert listed[0]["id"] == id
    assert "no worker polls" in listed[0]["incomplete"]
