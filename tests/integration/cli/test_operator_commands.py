"""`saga cancel`, `signal`, `parked`, `resolve` against a real server."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from saga_cli.own_identity import own_identity
from sagas.errors import UsageError
from tests.helpers.local_worker import running_worker
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until
from tests.integration.cli.conftest import ACTIONS, TRIP, CommandLine, fresh, write_project
from tests.integration.cli.test_start_and_show import state_of, until_shown


async def park(cli: CommandLine, name: str = "stuck") -> str:
    """A saga whose first undo is rejected: it is PARKED."""
    id = fresh(name)
    cli.break_undo(True)
    answer = await cli.saga("start", "trip", "--id", id, "--set", "mode=reject", "--wait")
    assert answer.code == 4, answer
    return id


async def test_a_parked_saga_shows_everything_an_operator_needs(cli: CommandLine) -> None:
    id = await park(cli)
    shown = (await cli.saga("show", id)).out
    assert "⏸ car waits for an operator" in shown
    assert "its undo" in shown
    assert "the other side says no" in shown
    assert "since" in shown
    assert f"saga resolve {id} car retry --reason" in shown
    assert "remains  hotel, car" in shown
    groups = await until_shown(cli, ("parked",), lambda rows: bool(rows))
    assert [(group["saga"], group["step"], group["op"], group["count"]) for group in groups] == [
        ("trip", "car", "undo", 1)
    ]
    assert groups[0]["ids"] == [id]
    stuck = (await cli.saga("--json", "list", "--stuck")).json
    assert stuck[0]["stuck"][0].startswith("car is parked (undo)")


async def test_a_saga_is_paused_and_resumed(cli: CommandLine) -> None:
    id = await park(cli)
    cli.break_undo(False)
    answer = await cli.saga("pause", id, "--reason", "closed today", "--as", "anna")
    assert answer.code == 0
    assert re.fullmatch(
        rf"{id}: paused by anna \(unverified\) since \S+ because: closed today; nothing is in flight",
        answer.out.strip(),
    )
    assert (await cli.saga("resolve", id, "car", "retry", "--reason", "mended")).code == 0
    shown = (await cli.saga("show", id)).out
    assert "paused by anna (unverified) since" in shown
    assert "closed today; held back: car" in shown
    assert f"saga resume {id}    lets it go on" in shown
    again = await cli.saga("--json", "pause", id, "--as", "ben")
    assert again.json == {"id": id, "response": "paused", "held": ["car"], "in_flight": []}
    assert "paused by anna (unverified) since" in (await cli.saga("pause", id, "--as", "ben")).out, "hers stays"
    assert (await cli.saga("--json", "show", id)).json["paused"]["who"] == "anna (unverified)"
    resumed = await cli.saga("--json", "resume", id, "--reason", "open again", "--as", "ben")
    assert resumed.json == {"id": id, "response": "resumed", "state": "COMPENSATING"}
    assert (await cli.saga("--json", "watch", id)).code == 3
    assert "ben (unverified): resume, because open again" in (await cli.saga("show", id)).out
    late = await cli.saga("resume", id)
    assert late.code == 9
    assert "has already ended COMPENSATED" in late.err
    assert (await cli.saga("pause", "nobody")).code == 2


async def _listed(cli: CommandLine, holds: Callable[[str], bool]) -> bool:
    return holds((await cli.saga("list", "--saga", "ask")).out)


async def test_pause_and_resume_apply_to_many_sagas(cli: CommandLine) -> None:
    first, second, other = fresh("many"), fresh("many"), fresh("other")
    for id in (first, second, other):
        await cli.saga("start", "ask", "--id", id)
    await until_shown(cli, ("list", "--state", "RUNNING"), lambda rows: len(rows) == 3)
    where = ("--where", f"WorkflowId IN ('{first}', '{second}')")
    assert (await cli.saga("pause", *where)).code == 2  # nothing can approve it
    answer = await cli.saga("--json", "pause", *where, "--reason", "the shop is migrated", "--yes")
    assert answer.code == 0, answer
    assert {row["id"]: row["response"] for row in answer.json} == {first: "paused", second: "paused"}
    stuck = (await cli.saga("--json", "list", "--stuck")).json
    assert {row["id"] for row in stuck if "the shop is migrated" in row["stuck"][0]} == {first, second}

    def told_in_list(rows: str) -> bool:
        return len(re.findall(r"RUNNING .* paused by .* since \S+ because: the shop is migrated", rows)) == 2

    await until(lambda: _listed(cli, told_in_list))
    cut = await cli.saga("list", "--stuck", "--saga", "ask", "--limit", "1")
    assert "2 sagas are paused one by one" in cut.err, "not only the one that is listed"
    assert "2 sagas are paused one by one" in (await cli.saga("report", "--since", "1h", "--saga", "ask")).out
    answer = await cli.saga("pause", "--where", "WorkflowType = 'ask'", "--reason", "later", "--yes", "--as", "kim")
    told = {line.partition(": ")[0]: line.partition(": ")[2] for line in answer.out.splitlines()}
    assert told[first].startswith("already paused: paused by ")
    assert "the shop is migrated" in told[first]
    assert told[other].startswith("paused by kim (unverified) since ")
    assert "1 paused" in answer.out
    assert "2 already paused" in answer.out
    assert (await cli.saga("resume", other)).code == 0
    answer = await cli.saga("resume", "--where", "WorkflowType = 'ask'", "--yes")
    assert answer.code == 0, answer
    assert f"{first}: resumed: it is RUNNING" in answer.out
    assert f"{other}: not paused: it is RUNNING" in answer.out
    await until(lambda: _listed(cli, lambda rows: "RUNNING" in rows and "paused" not in rows))
    assert "one by one" not in (await cli.saga("report", "--since", "1h", "--saga", "ask")).out
    assert (await cli.saga("resume", *where, "--not-ended")).code == 2
    for command in ("pause", "resume"):
        for words in ((), (first, *where)):
            wrong = await cli.saga(command, *words)
            assert (wrong.code, "the id of one saga, --where, --saga or --connection" in wrong.err) == (2, True)
    assert (await cli.saga("cancel", "--where", "WorkflowType = 'ask'", "--yes")).code == 0


async def test_retry_continues_at_the_stuck_step(cli: CommandLine) -> None:
    id = await park(cli)
    cli.break_undo(False)
    tried = await cli.saga("--json", "resolve", id, "car", "retry", "--dry-run")
    assert tried.json["next"] == [
        "car will be undone (tried again): unwork",
        "after that, also undone, in this order: Book the hotel (hotel)",
        "if the undos succeed, nothing that it has done stays",
    ]
    answer = await cli.saga("resolve", id, "car", "retry", "--reason", "mended", "--as", "anna")
    assert answer.code == 0, answer
    ended = await cli.saga("--json", "watch", id)
    assert ended.code == 3
    assert ended.json["operator"][0]["who"] == "anna"
    assert "anna: retry car, because mended" in (await cli.saga("show", id)).out
    late = await cli.saga("resolve", id, "car", "retry", "--reason", "again")
    assert late.code == 9
    assert "has already ended" in late.err


async def test_a_skipped_undo_ends_in_residue(cli: CommandLine) -> None:
    id = await park(cli)
    cli.break_undo(False)
    answer = await cli.saga("resolve", id, "car", "skip", "--reason", "written off", "--yes")
    assert answer.code == 0
    ended = await cli.saga("watch", id)
    assert ended.code == 5
    assert "car: its effect stays" in (await cli.saga("show", id)).out


@pytest.mark.sampled(keep=4)
@pytest.mark.parametrize(
    ("args", "exit_code", "message"),
    [
        (("car", "compensate", "--reason", "x"), 9, "not possible"),
        (("car", "done", "--reason", "x"), 9, "needs --evidence"),
        (("cra", "retry", "--reason", "x"), 9, "did you mean car"),
        (("hotel", "retry", "--reason", "x"), 9, "can be decided"),
        (("car", "retry"), 2, "--reason is missing"),
        (("car", "rety", "--reason", "x"), 2, "did you mean retry?"),
        (("car", "retry", "--reason", "x", "--with", "{"), 2, "not JSON"),
        (("car", "retry", "--reason", "x", "--with", "[1]"), 2, "must be a JSON object"),
        (("car", "retry", "--reason", "x", "--result", "1"), 2, "--result can only be used with `done`"),
        (("car", "retry", "--reason", "x", "--definition", "/nowhere.yaml"), 2, "cannot be read"),
        (("car",), 2, "give ID STEP DECISION"),
    ],
)
async def test_an_impossible_decision_gives_a_one_line_error(
    cli: CommandLine, args: tuple[str, ...], exit_code: int, message: str
) -> None:
    id = await park(cli)
    answer = await cli.saga("resolve", id, *args)
    assert answer.code == exit_code, answer
    assert message in answer.err


async def test_the_definition_can_be_corrected_in_flight(cli: CommandLine) -> None:
    id = await park(cli)
    repaired = cli.folder / "mended.yaml"
    repaired.write_text(TRIP.replace("compensate: unwork", "compensate: work", 1).replace("Book the", "Take the"))
    cli.break_undo(False)
    words = ("resolve", id, "car", "retry", "--reason", "mended", "--definition", str(repaired))
    answer = await cli.saga(*words)
    assert answer.code == 0, answer
    story = (await cli.saga("--json", "watch", id)).json
    assert story["state"] == "COMPENSATED"
    assert story["steps"][0]["name"] == "Take the hotel"


async def test_one_decision_applies_to_many_sagas(cli: CommandLine) -> None:
    ids = {await park(cli), await park(cli)}
    groups = await until_shown(cli, ("parked",), lambda rows: bool(rows) and rows[0]["count"] == 2)
    assert groups[0]["command"].startswith("saga resolve car retry --where ")
    cli.break_undo(False)
    where = ("--where", "WorkflowType = 'trip'")
    nothing = await cli.saga("resolve", *where, "car", "retry", "--reason", "x", "--error", "no such text", "--yes")
    assert "no parked step matches" in nothing.out
    unasked = await cli.saga("resolve", *where, "car", "retry", "--reason", "mended")
    assert unasked.code == 2
    assert "--yes" in unasked.err
    answer = await cli.saga("--json", "resolve", *where, "car", "retry", "--reason", "mended", "--op", "undo", "--yes")
    assert answer.code == 0, answer
    assert {row["id"] for row in answer.json} == ids
    for id in ids:
        assert (await cli.saga("watch", id)).code == 3


BLIND = """
@action("blind", idempotent=False)
async def blind() -> None:
    raise ConnectionError("the airline does not answer")
"""


async def test_a_group_that_cannot_be_retried_has_a_command_that_works(
    temporal: TemporalServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each of its sagas has to be looked at: the effect may be there, and must not be made twice."""
    project = write_project(tmp_path / "project", temporal)
    (tmp_path / "project" / "actions.py").write_text(ACTIONS + BLIND)
    step = "{id: seat, uses: blind, compensate: unwork, on_failure: park, retry: {max_attempts: 1}}"
    (tmp_path / "project" / "blind.saga.yaml").write_text(f"saga: blind\nsteps:\n  - {step}\n")
    async with running_worker(project) as client:
        cli = CommandLine(tmp_path / "project", capsys, client)
        for _ in range(2):
            assert (await cli.saga("start", "blind", "--wait")).code == 4
        groups = await until_shown(cli, ("parked",), lambda rows: bool(rows) and rows[0]["count"] == 2)
        assert "retry" not in groups[0]["decisions"]
        words = shlex.split(groups[0]["command"])[1:]
        answer = await cli.saga(*("{}" if word == "{…}" else word for word in words), "--yes")
        assert answer.code == 0, answer


async def test_new_arguments_are_checked_before_they_are_sent(cli: CommandLine, tmp_path: Path) -> None:
    id = fresh("bad")
    steps = "steps: [{id: car, uses: work, with: {mode: reject}, compensate: unwork, on_failure: park}]\n"
    (cli.folder / "bad.saga.yaml").write_text(f"saga: bad\n{steps}")
    assert (await cli.saga("start", "bad", "--id", id, "--wait")).code == 4
    (tmp_path / "large.json").write_text(json.dumps({"mode": "x" * 3_000_000}))
    for written, problem in (
        ("[1]", "--with must be a JSON object"),
        ('{"mode": NaN}', "--with cannot be read: NaN is not a JSON number"),
        (f"@{tmp_path / 'large.json'}", "the size of --with is 3,000,011 bytes"),
        ('{"mood": "ok"}', "--with does not fit: work takes no argument 'mood'; it takes mode"),
        ('{"mode": 5}', "--with does not fit: work: argument mode: the value is not a string"),
    ):
        answer = await cli.saga("resolve", id, "car", "retry", "--reason", "x", "--with", written)
        assert (answer.code, answer.err.count("error: ")) == (2, 1), answer
        assert problem in answer.err
    words = ("resolve", "--where", f"WorkflowId = '{id}'", "car", "retry", "--reason", "x", "--with", '{"mood": 1}')
    await until_shown(cli, ("parked",), lambda rows: any(id in json.dumps(row) for row in rows))
    refused = await cli.saga("--json", *words)
    assert (refused.code, refused.json[0]["accepted"]) == (2, False), refused
    assert "--yes" not in refused.err
    answer = await cli.saga("--json", "resolve", id, "car", "retry", "--reason", "x", "--with", '{"mode": "ok"}')
    assert answer.code == 0, answer
    assert f"/workflows/{id}/" in answer.json["web_ui"]
    assert (await cli.saga("watch", id)).code == 0


RESULTS = """saga: results
steps:
  - {id: hotel, uses: reserve, compensate: unwork, on_failure: park}
  - {id: car, uses: work, with: {mode: reject}, compensate: unwork, on_failure: park}
  - {id: flight, uses: work, with: {mode: "${{ steps.car.result.code.short }}"}, compensate: unwork}
"""


async def test_a_result_is_compared_with_what_the_step_returns_and_others_read(cli: CommandLine) -> None:
    id = fresh("results")
    (cli.folder / "results.saga.yaml").write_text(RESULTS)
    started = await cli.saga("start", "results", "--id", id, "--wait")
    assert started.code == 4, started
    reads = "which step flight reads: `steps.car.result.code.short`"
    for step, written, code, problem in (
        ("hotel", '{"id": 5}', 2, "--result does not fit: reserve: result.id: the value is not a string"),
        ("hotel", '{"nights": 2}', 2, "--result does not fit: reserve: result: "),
        ("hotel", '{"id": "h-1"}', 0, "accepted"),
        ("car", None, 9, f"--result is null without the field `code`, {reads}"),
        ("car", '{"id": "c-1"}', 9, f"--result lacks `code`, {reads}"),
        ("car", '{"code": {}}', 9, f"--result lacks `code.short`, {reads}"),
        ("car", '{"code": {"short": "ok"}}', 0, "accepted"),
    ):
        options = () if written is None else ("--result", written)
        answer = await cli.saga("resolve", id, step, "done", "--reason", "booked by phone", *options)
        assert (answer.code, problem in answer.err + answer.out) == (code, True), answer
        if code == 0:
            # Once the hotel is done, the car parks.
            await cli.saga("watch", id, "--until", "parked")
    assert (await cli.saga("--json", "show", id)).json["state"] == "COMPLETED"


async def test_the_answer_about_a_confirm_is_compared_with_the_confirm(cli: CommandLine) -> None:
    id = fresh("confirmed")
    steps = "steps: [{id: car, uses: work, compensate: unwork, confirm: unwork}, {id: pay, uses: work, pivot: true}]\n"
    (cli.folder / "confirmed.saga.yaml").write_text(f"saga: confirmed\n{steps}")
    cli.break_undo(True)
    assert (await cli.saga("start", "confirmed", "--id", id, "--wait")).code == 4
    cli.break_undo(False)
    for decision, options, code, problem in (
        ("retry", ("--with", '{"mood": 1}'), 2, "--with does not fit: unwork takes no argument 'mood'; it takes mode"),
        ("retry", ("--with", '{"mode": 1}'), 2, "--with does not fit: unwork: argument mode: the value is not a"),
        ("done", ("--result", "1"), 9, "--result has no effect: the confirm of car has no result"),
        ("retry", ("--with", '{"mode": "ok"}'), 0, "accepted"),
    ):
        answer = await cli.saga("resolve", id, "car", decision, "--reason", "x", *options)
        assert (answer.code, problem in answer.err + answer.out) == (code, True), answer
    assert (await cli.saga("watch", id)).code == 0


async def test_who_has_not_the_actions_of_the_project_can_decide(cli: CommandLine) -> None:
    id = fresh("results")
    (cli.folder / "results.saga.yaml").write_text(RESULTS)
    assert (await cli.saga("start", "results", "--id", id, "--wait")).code == 4
    settings = (cli.folder / "saga.toml").read_text()
    (cli.folder / "saga.toml").write_text(settings.replace('"./actions.py"', '"./actions.py", "./elsewhere.py"'))
    words = ("resolve", id, "hotel", "done", "--reason", "booked by phone", "--result", '{"id": 5}')
    answer = await cli.saga(*words)
    assert answer.code == 0, answer
    why = "the action file ./elsewhere.py was not found"
    assert f"the answer is not compared with the signature of reserve: {why}" in answer.err
    await cli.saga("cancel", id, "--reason", "not wanted")


async def test_what_will_be_refused_needs_no_confirmation(cli: CommandLine) -> None:
    id = fresh("ask")
    await cli.saga("start", "ask", "--id", id)
    for words in (("resolve", id, "hotel", "skip"), ("resolve", "nobody", "hotel", "skip"), ("undo", id)):
        answer = await cli.saga(*words, "--reason", "x")
        assert answer.code in (2, 9), answer
        assert "confirmation" not in answer.err
    await cli.saga("signal", id, "approve")
    assert (await cli.saga("watch", id)).code == 0
    assert "needs a confirmation" in (await cli.saga("undo", id, "--reason", "x")).err


async def test_cancel_undoes_and_past_the_pivot_is_refused(cli: CommandLine) -> None:
    id = fresh("cancelled")
    await cli.saga("start", "ask", "--id", id)
    answer = await cli.saga("cancel", id, "--reason", "not wanted", "--as", "ben")
    assert answer.code == 0, answer
    assert (await cli.saga("watch", id)).code == 6
    again = await cli.saga("--json", "cancel", id)
    assert (again.code, again.json["response"]) == (0, "already")

    order = fresh("order")
    await cli.saga("start", "order", "--set", f'number="{order}"')
    await until_shown(cli, ("show", order), lambda story: story["state"] == "COMMITTED")
    refused = await cli.saga("cancel", order)
    assert refused.code == 9, refused
    assert "past the point of no return" in refused.err
    await cli.saga("signal", order, "delivered")
    assert (await cli.saga("watch", order)).code == 0


async def test_cancel_applies_to_many_sagas(cli: CommandLine) -> None:
    ids = {fresh("many") for _ in range(3)}
    for id in ids:
        await cli.saga("start", "ask", "--id", id)
    await until_shown(cli, ("list", "--state", "RUNNING"), lambda rows: len(rows) == 3)
    assert (await cli.saga("cancel", "--where", "WorkflowType = 'ask'")).code == 2  # nothing can approve it
    answer = await cli.saga("--json", "cancel", "--where", "WorkflowType = 'ask'", "--yes")
    assert {row["id"] for row in answer.json} == ids
    for id in ids:
        assert (await cli.saga("watch", id)).code == 6
        [decision] = (await cli.saga("--json", "show", id)).json["operator"]
        assert (decision["decision"], decision["who"]) == ("cancel", f"{own_identity()} (unverified)")


async def test_a_bulk_cancel_continues_after_a_refusal(cli: CommandLine) -> None:
    first, order, last = fresh("many"), fresh("order"), fresh("many")
    await cli.saga("start", "ask", "--id", first)
    await cli.saga("start", "order", "--set", f'number="{order}"')
    await until_shown(cli, ("show", order), lambda story: story["state"] == "COMMITTED")
    await cli.saga("start", "ask", "--id", last)
    await until_shown(cli, ("list", "--state", "RUNNING,COMMITTED"), lambda rows: len(rows) == 3)
    answer = await cli.saga("--json", "cancel", "--where", "StartTime > '2000-01-01T00:00:00Z'", "--yes")
    assert answer.code == 9, answer
    assert {row["id"]: row["response"] for row in answer.json} == {
        first: "accepted",
        order: "refused",
        last: "accepted",
    }
    for id in (first, last):
        assert (await cli.saga("watch", id)).code == 6
    assert (await cli.saga("cancel", "--where", "WorkflowType = 'ask'", "--wait")).code == 2


async def test_a_signal_can_reject(cli: CommandLine) -> None:
    id = fresh("asked")
    await cli.saga("start", "ask", "--id", id)
    assert (await cli.saga("signal", id, "approve", "--reject", "too dear", "--as", "cleo")).code == 0
    assert (await cli.saga("watch", id)).code == 3
    story = (await cli.saga("--json", "show", id)).json
    assert story["reason"]["kind"] == "rejected"
    assert "too dear" in json.dumps(story["reason"])
    assert (await cli.saga("signal", id, "approve")).code == 9


async def test_a_signal_without_a_matching_wait_is_refused(cli: CommandLine) -> None:
    id = fresh("ask")
    await cli.saga("start", "ask", "--id", id)
    answer = await cli.saga("signal", id, "aprove")
    assert answer.code == 2, answer
    assert "did you mean approve?" in answer.err
    assert "it waits for approve" in answer.err
    none = fresh("order")
    await cli.saga("start", "order", "--id", none, "--set", f"number={none}")
    # Early or not, the name of a later `wait` is right.
    assert (await cli.saga("signal", none, "delivered")).code == 0
    assert (await cli.saga("signal", id, "approve")).code == 0
    assert (await cli.saga("watch", id)).code == 0


async def test_a_signal_whose_data_a_saga_could_not_read_is_refused(cli: CommandLine) -> None:
    """The saga would ignore it, and nobody would be told."""
    id = fresh("ask")
    await cli.saga("start", "ask", "--id", id)
    for words, problem in (
        (("--data", '{"note": "\\ud800"}'), "it contains half a surrogate pair"),
        (("--data", "[" * 101 + "]" * 101), "it is nested deeper than 100 levels"),
        (("--reject", "no \udce4"), "it contains half a surrogate pair"),
    ):
        answer = await cli.saga("signal", id, "approve", *words)
        assert answer.code == 2, answer
        assert f"is not valid: {problem}" in answer.err
    with pytest.raises(UsageError, match="half a surrogate pair"):
        await cli.client.signal(id, "approve", {"\udc00": 1})
    assert (await cli.saga("signal", id, "approve")).code == 0
    assert (await cli.saga("watch", id)).code == 0


async def test_a_signal_to_an_unresponsive_saga_is_sent_with_a_warning(cli_without_worker: CommandLine) -> None:
    id = fresh("ask")
    await cli_without_worker.saga("start", "ask", "--id", id)
    answer = await cli_without_worker.saga("signal", id, "anything")
    assert answer.code == 0, answer
    assert "not checked whether" in answer.err


async def test_a_terminated_wait_is_not_an_open_effect(cli: CommandLine) -> None:
    id = fresh("ask")
    await cli.saga("start", "ask", "--id", id)
    await until_shown(cli, ("show", id), lambda story: state_of(story, 1) == "RUNNING")
    await cli.client.temporal.get_workflow_handle(id).terminate(reason="a test")
    stuck = await until_shown(cli, ("list", "--stuck"), lambda rows: id in [row["id"] for row in rows])
    assert [row["stuck"] for row in stuck if row["id"] == id] == [
        [f"terminated with open effects: hold: `saga resume {id}` undoes them"]
    ]
    answer = await cli.saga("--json", "resume", id, "--reason", "by mistake")
    shown = (await cli.saga("show", id)).out
    assert "because by mistake" in shown
    assert re.search(r"^terminated: terminated by .+: a test$", shown, re.MULTILINE), "who terminated it, and why"
    assert answer.json == {"id": id, "response": "undone; it is COMPENSATED", "state": "COMPENSATED"}
    assert (await cli.saga("resume", id)).code == 9


async def test_a_listed_open_saga_is_its_view_without_steps(cli: CommandLine) -> None:
    waiting, parked = fresh("ask"), await park(cli)
    await cli.saga("start", "ask", "--id", waiting)
    await until_shown(cli, ("show", waiting), lambda story: state_of(story, 1) == "RUNNING")
    listed = await until_shown(cli, ("list",), lambda rows: {waiting, parked} <= {row["id"] for row in rows})
    for id in (waiting, parked):
        story = (await cli.saga("--json", "show", id)).json
        del story["steps"]
        story.pop("stuck", None)  # which a list tells with --stuck only
        assert [row for row in listed if row["id"] == id] == [story]


async def test_a_listed_unresponsive_saga_is_marked_incomplete(cli_without_worker: CommandLine) -> None:
    id = fresh("ask")
    await cli_without_worker.saga("start", "ask", "--id", id)
    listed = await until_shown(cli_without_worker, ("list",), lambda rows: bool(rows))
    assert listed[0]["id"] == id
    assert "no worker polls" in listed[0]["incomplete"]
