from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from saga_cli.exit_codes import exit_code
from saga_cli.render.saga_view import view_lines, view_page
from saga_cli.wait import _progress
from saga_workers.stuck.stuck_sagas import remedy
from sagas.presentation.styled_text import format_duration, progress_text, to_plain
from sagas.protocol.saga_view import SagaView

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def step(id: str, state: str, **more: Any) -> dict[str, Any]:
    plain = {"id": id, "step": id.partition("#")[0], "name": id, "uses": "act", "state": state, "attempts": 1}
    return {**plain, **more}


def story(**more: Any) -> SagaView:
    plain = {"id": "s-1", "saga": "shop", "state": "COMPLETED", "started_at": "2026-03-01T11:59:00Z"}
    return SagaView.from_json({**plain, **more})


def text(reported: SagaView) -> str:
    return "\n".join(to_plain(line) for line in view_lines(reported, now=NOW))


def test_attempts_and_errors_are_shown_with_their_step() -> None:
    error = {"type": "Timeout", "message": "no answer in time"}
    reported = text(story(state="RUNNING", steps=[step("pay", "RUNNING", attempts=7, error=error)]))
    assert "running for 60 s" in reported
    assert "7 attempts" in reported
    assert "no answer in time" in reported


def test_the_next_attempt_and_the_next_probe_have_their_times() -> None:
    error, at = {"type": "Timeout", "message": "no answer"}, "2026-03-01T12:10:00Z"
    assert "next attempt in 10 min" in text(
        story(state="RUNNING", steps=[step("pay", "RUNNING", error=error, next_attempt_at=at)])
    )
    parked = {"step": "pay", "op": "do", "since": "2026-03-01T11:59:30Z", "why": "it is unknown", "next_probe_at": at}
    reported = story(state="PARKED", steps=[step("pay", "PARKED", error=error)], parked=[parked])
    assert "probe    asked again in 10 min; a clear answer ends the wait" in text(reported)


LONG = f"the database cannot run the statement: {'no such column, ' * 10}in `update t`; correct the statement"


def test_a_long_error_is_shown_once_and_to_its_end() -> None:
    error = {"type": "UndefinedColumn", "message": LONG}
    lines = text(story(steps=[step("pay", "FAILED", error=error), step("ship", "PENDING")])).splitlines()
    (at,) = (number for number, line in enumerate(lines) if line.strip().startswith("✖"))
    assert "the database" not in lines[at]
    assert lines[at + 1].strip() == LONG
    assert "ship" in lines[at + 2]


def test_a_huge_error_keeps_its_reason_and_its_advice() -> None:
    error = {"type": "X", "message": f"the reason: {'a' * 5_000}; do this"}
    reported = text(story(steps=[step("pay", "FAILED", error=error)]))
    assert "the reason: " in reported
    assert reported.rstrip().endswith("; do this")
    assert len(reported) < 3_000


@pytest.mark.parametrize(
    "more",
    [
        {"reason": {"kind": "failed", "step": "pay", "type": "X", "message": LONG}},
        {"parked": [{"step": "pay", "op": "do", "since": "2026-03-01T11:59:30Z", "why": f"X: {LONG}"}]},
    ],
    ids=["reason", "parked"],
)
def test_an_error_that_is_told_elsewhere_is_not_repeated(more: dict[str, Any]) -> None:
    error = {"type": "X", "message": LONG}
    assert text(story(steps=[step("pay", "FAILED", error=error)], **more)).count("; correct the statement") == 1


def test_the_arguments_of_what_has_failed_are_shown_below_it() -> None:
    error, undo = {"type": "X", "message": "no"}, {"uses": "give", "state": "PARKED", "arguments": {"sku": "fig"}}
    failed = step("pay", "FAILED", error=error, arguments={"amount": 12, "to": "A-7"})
    undone = step("take", "PARKED", compensation={**undo, "error": error})
    running = step("ship", "RUNNING", arguments={"to": "Rome"})
    page = view_page(story(steps=[failed, undone, running]))
    lines = [line.strip() for line in text(story(steps=[failed, undone, running])).splitlines()]
    assert 'called with {"amount": 12, "to": "A-7"}' in lines
    assert 'its undo called with {"sku": "fig"}' in lines
    assert not any("Rome" in line for line in lines)
    assert page.count("called with") == 2


def test_the_residue_of_a_nested_saga_names_it() -> None:
    stays = {"step": "ma", "saga": "s-1/v", "kind": "effect_stays", "system": "bank", "key": "s-1/v/ma"}
    nested = step("v", "COMPENSATED", uses="saga", outcome="done", compensation={"uses": "saga", "state": "DONE"})
    children = [{"id": "s-1/v", "step": "v", "saga": "pay", "state": "RESIDUE"}]
    reported = text(story(state="RESIDUE", steps=[nested], residue=[stays], children=children))
    assert "! s-1/v ma: its effect stays in bank (key s-1/v/ma)" in reported
    assert "↩ ended RESIDUE (saga)" in reported
    assert "undone (saga)" not in reported


def test_a_failed_expression_may_come_from_the_input() -> None:
    reason = {"kind": "definition", "step": "pay", "message": 'pay.with.n: "abc" is not a number'}
    assert 'definition or input at pay: pay.with.n: "abc" is not a number' in text(
        story(state="COMPENSATED", reason=reason)
    )


def test_a_long_for_each_is_summarized() -> None:
    items = [step(f"reserve#{number}", "DONE") for number in range(500)]
    items[3] = step("reserve#3", "REJECTED", error={"type": "SoldOut", "message": "sold out"})
    reported = text(story(steps=items))
    assert "reserve#3" in reported
    assert "sold out" in reported
    assert "reserve: 499 of 500 items done" in reported
    assert len(reported.splitlines()) < 10


def test_an_incomplete_view_is_marked() -> None:
    assert "incomplete: no history" in text(story(incomplete="no history"))
    assert "saga worker" not in text(story(incomplete="no history"))


def test_a_saga_that_no_worker_answers_for_needs_one() -> None:
    reason = "no worker answers on the task queue sagas"
    reported = text(story(incomplete=f"{reason}, so the saga cannot be queried"))
    assert f"incomplete: {reason}, so the saga cannot be queried\nsaga worker    (or saga dev up)" in reported
    assert remedy(SagaView(id="s-1", saga="s", state="RUNNING", stuck=(reason,))) == "saga worker    (or saga dev up)"
    assert remedy(SagaView(id="s-1", saga="s", state="RUNNING", stuck=(reason, "overdue"))) == "saga show s-1"


def test_residue_names_the_remaining_effect_and_the_command() -> None:
    command = "bank refund 7\nbank close 7"
    residue_item = {"step": "pay", "kind": "effect_stays", "system": "bank", "key": "s-1/pay", "command": command}
    reported = text(story(state="RESIDUE", residue=[residue_item]))
    assert "pay: its effect stays in bank (key s-1/pay)" in reported
    assert "\n    bank refund 7\n    bank close 7" in reported


def test_the_residue_of_an_unknown_step_is_not_claimed() -> None:
    residue_item = {"step": "hotel", "kind": "effect_stays", "system": "hotel", "key": "s-1/hotel"}
    reported = text(story(state="RESIDUE", steps=[step("hotel", "SKIPPED", outcome="unknown")], residue=[residue_item]))
    assert "hotel: its effect may remain in hotel (key s-1/hotel)" in reported


@pytest.mark.parametrize(
    ("details", "words"),
    [
        ({"cannot_heal": True}, "a retry would fail in the same way"),
        ({"rows": 0, "expected": 1}, "the statement had 0 rows instead of 1"),
        ({"balance": 3}, "balance=3"),
    ],
)
def test_details_of_the_engine_are_words(details: dict[str, Any], words: str) -> None:
    reason = {"kind": "rejected", "step": "pay", "type": "Rejected", "message": "no", "details": details}
    assert words in text(story(reason=reason)).splitlines()[2]


def test_a_statement_that_the_message_quotes_is_shown_once() -> None:
    statement = f"insert into orders (id, {', '.join(f'column_{number}' for number in range(30))}) values (:id)"
    message = f"the database cannot run the statement: no (22P02), in `{statement[:119]}…`; correct it"
    details = {"code": "22P02", "statement": statement, "balance": 777}
    reason = {"kind": "failed", "step": "pay", "type": "DataError", "message": message, "details": details}
    reported = text(story(reason=reason))
    assert "statement=" not in reported
    assert "\n  balance=777\n" in reported


@pytest.mark.parametrize(
    ("state", "reason", "code"),
    [
        ("COMPLETED", None, 0),
        ("TERMINATED", {"kind": "terminated"}, 1),
        ("FAILED", {"kind": "rejected", "type": "SagaRefused"}, 2),
        ("FAILED", {"kind": "failed"}, 1),
        ("COMPENSATED", {"kind": "rejected"}, 3),
        ("COMPENSATED", {"kind": "cancelled"}, 6),
        ("PARKED", None, 4),
        ("RESIDUE", None, 5),
        ("COMMITTED", None, 7),
    ],
)
def test_exit_codes(state: str, reason: dict[str, Any] | None, code: int) -> None:
    assert exit_code(story(state=state, reason=reason)) == code


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.44, "0.4 s"), (75, "75 s"), (600, "10 min"), (3 * 3600, "3 h"), (3 * 86400, "3 days")]
)
def test_durations_are_formatted(seconds: float, text: str) -> None:
    assert format_duration(datetime.fromtimestamp(seconds, UTC), datetime.fromtimestamp(0, UTC)) == text


def test_a_job_that_waits_for_executors_says_so() -> None:
    progress = {"doing": "running the job", "tasks": 4, "tasks_done": 0}
    assert progress_text({**progress, "executors": 0}) == "running the job, 0 of 4 tasks, no executors"
    assert progress_text({**progress, "executors": 2}) == "running the job, 0 of 4 tasks"


def test_a_wait_says_once_that_spark_starts(capsys: pytest.CaptureFixture[str]) -> None:
    progress = {"doing": "running the job", "starting": "Spark"}
    starting, begun = (
        story(state="RUNNING", steps=[step("count", "RUNNING", progress=values)])
        for values in (progress, {**progress, "starting": None})
    )
    with _progress(warned=False) as show:
        for view in (starting, starting, begun):
            show(view, ())
    assert capsys.readouterr().err == "waiting for s-1: count: running the job, starting Spark\n"


def test_the_page_has_the_story_and_runs_nothing_from_it() -> None:
    injected = "<script>alert(1)</script>"
    residue_item = {"step": "pay", "kind": "effect_stays", "system": injected, "command": "bank refund 7"}
    page = view_page(story(state="RESIDUE", labels={"note": injected}, residue=[residue_item]))
    assert page.startswith("<!doctype html>")
    assert "<title>s-1: shop RESIDUE</title>" in page
    assert '<span class="bold red">RESIDUE</span>' in page
    assert "bank refund 7" in page
    assert injected not in page
    assert page.count("&lt;script&gt;") == 4, "as text, in the story and in the JSON"


def test_a_step_that_a_pause_holds_back_is_not_running() -> None:
    paused = {"at": "2026-03-01T11:59:00Z", "who": "ada", "held": ["pay", "ship"]}
    steps = [step("pay", "RUNNING", attempts=0), step("ship", "RUNNING", attempts=2)]
    lines = text(story(state="RUNNING", paused=paused, steps=steps)).splitlines()
    assert [line.split() for line in lines if " act " in line] == [
        ["⏸", "pay", "act", "held"],
        ["▶", "ship", "act", "running,", "2", "attempts"],
    ]


def parked_rows(count: int) -> dict[str, Any]:
    row = {"row": "r", "table": "public.stock", "before": {"free": "5"}, "after": {"free": "4"}, "now": None}
    rows = [{**row, "key": {"sku": f"<{number}>"}, "changed_by": "somebody"} for number in range(count)]
    operation = {"step": "take", "op": "undo", "since": "2026-03-01T11:59:00Z", "why": "changed", "system": "shop"}
    return {
        **operation,
        "rows": rows,
        "rows_omitted": 3,
        "sql": ["BEGIN;\n  DELETE FROM x;", "COMMIT;"],
        "sql_note": "n",
    }


def test_the_rows_of_a_parked_undo_are_shown_with_their_sql() -> None:
    lines = text(story(state="PARKED", parked=[parked_rows(7)])).splitlines()
    assert "  row      public.stock sku=<0>, changed by somebody" in lines
    assert lines[lines.index("    before         free=5") :][:3] == [
        "    before         free=5",
        "    after          free=4",
        "    when it parked no row",
    ]
    assert len([line for line in lines if line.startswith("  row      public.stock")]) == 7
    assert "    … and 3 more rows" in lines
    overwritten = "It overwrites what has been written since by somebody: compare the rows first."
    assert lines[lines.index("    BEGIN;") - 1] == f"    {overwritten}"
    assert lines[lines.index("    BEGIN;") :][:3] == ["    BEGIN;", "      DELETE FROM x;", "    COMMIT;"]
    assert overwritten in view_page(story(state="PARKED", parked=[parked_rows(7)]))


def undone(id: str, state: str, *left_to: str) -> dict[str, Any]:
    undo = {"uses": "sql.restore", "state": state, **({"left_to": list(left_to)} if left_to else {})}
    return step(id, "PARKED" if state == "PARKED" else "COMPENSATED", outcome="done", compensation=undo)


@pytest.mark.parametrize(
    ("shelf", "words", "remains"),
    [("PARKED", "rows left to the undo of shelf", "remains  shelf, write, swap"), ("DONE", "undone", None)],
)
def test_rows_that_another_undo_has_to_restore_are_not_undone(shelf: str, words: str, remains: str | None) -> None:
    steps = [undone("shelf", shelf), undone("write", "DONE", "shelf"), undone("swap", "DONE", "write")]
    waits = [parked_rows(1) | {"step": "shelf"}] if remains else []
    lines = text(story(state="PARKED" if remains else "COMPENSATED", phase="backward", steps=steps, parked=waits))
    assert lines.count(f"↩ {words} (sql.restore)") == (2 if remains else 3)
    assert ("  " + (remains or "remains") in lines) == bool(remains)


def test_the_page_has_a_table_of_the_rows_of_a_parked_undo() -> None:
    page = view_page(story(state="PARKED", parked=[parked_rows(7)]))
    assert "<h2>Rows of take in shop</h2>" in page
    assert page.count("<td>public.stock</td>") == 7
    assert "<td>sku=&lt;6&gt;</td><td>free = 5</td><td>free = 4</td><td>no row</td><td>somebody</td>" in page
    assert "<p>and 3 more rows</p>" in page
    assert "<table>" not in view_page(story())


def test_what_is_parked_in_a_nested_saga_says_where_its_details_are() -> None:
    def parked(id: str, step: str) -> dict[str, Any]:
        command = f"saga resolve {id} {step} retry --reason '…'"
        return {"step": step, "op": "undo", "since": "2026-03-01T11:59:00Z", "why": "changed", "commands": [command]}

    waits = [{"id": id, "saga": "pay", **parked(id, "take")} for id in ("s-1/v", "s-1/v/w")]
    child = {"id": "s-1/v", "step": "v", "saga": "pay", "state": "PARKED", "waits": waits}
    shown = [*({**parked(wait["id"], "take"), "step": "v"} for wait in waits), parked("s-1", "own")]
    steps = [step("v", "COMPENSATING", uses="saga"), step("own", "PARKED")]
    lines = text(story(state="PARKED", phase="backward", steps=steps, parked=shown, children=[child])).splitlines()
    assert [line.split()[1:] for line in lines if "details" in line] == [
        ["saga", "show", "s-1/v"],
        ["saga", "show", "s-1/v/w"],
    ]


def test_a_nested_saga_that_is_not_undone_yet_remains() -> None:
    steps = [
        step("v#0", "DONE", uses="saga"),
        step("v#1", "DONE", uses="saga"),
        step("v#2", "PARKED", uses="saga", compensation={"uses": "saga", "state": "PARKED"}),
        step("look", "DONE", effect="none"),
        step("pay", "REJECTED"),
    ]
    stuck = {"step": "v#2", "op": "undo", "since": "2026-03-01T11:59:00Z", "why": "changed"}
    lines = text(story(state="PARKED", phase="backward", steps=steps, parked=[stuck])).splitlines()
    assert lines[lines.index("  undone   nothing") + 1] == "  remains  v#0, v#1, v#2"


def test_a_parked_step_after_the_pivot_remains() -> None:
    steps = [step("pay", "DONE"), step("ship", "PARKED"), step("note", "PENDING")]
    stuck = {"step": "ship", "op": "do", "since": "2026-03-01T11:59:00Z", "why": "changed"}
    lines = text(story(state="PARKED", phase="forward", steps=steps, parked=[stuck])).splitlines()
    assert lines[lines.index("  done     pay") + 1] == "  remains  ship, note"


def test_a_result_that_was_not_kept_is_named_with_its_size() -> None:
    omitted = {"omitted": "size", "bytes": 1_912_345}
    steps = [step("r1", "DONE", result=[1]), step("r2", "DONE", result=omitted, result_kept=False)]
    reported = text(story(steps=steps))
    assert "not kept, and no expression can read it: the result of r2 (1,912,345 bytes)" in reported
    assert "not kept" not in text(story(steps=[step("r1", "DONE", result=omitted)]))


@pytest.mark.parametrize(
    ("more", "words"),
    [({"state": "RUNNING"}, "it runs longer"), ({"ended_at": "2026-03-01T12:00:00Z"}, "it ran longer")],
)
def test_a_saga_that_has_ended_is_not_overdue_any_more(more: dict[str, Any], words: str) -> None:
    assert f"overdue: {words} than its warn_after" in text(story(overdue=True, **more))


def test_a_decision_tells_what_it_was_about() -> None:
    decision = {
        "at": "2026-03-01T12:00:00Z",
        "who": "ada",
        "step": "pay",
        "decision": "done",
        "reason": "paid by hand",
        "error": "card declined",
    }
    lines = text(story(steps=[step("pay", "DONE")], operator=[decision])).splitlines()
    (at,) = (number for number, line in enumerate(lines) if "ada: done pay, because paid by hand" in line)
    assert lines[at + 1].strip() == "it was parked: card declined"
