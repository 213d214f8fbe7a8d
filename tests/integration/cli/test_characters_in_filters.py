"""Values with characters that Temporal's list filters cannot hold: labels, and the ids of sagas and batches."""

from __future__ import annotations

import json

import pytest

from tests.helpers.sampling import mostly_slow
from tests.integration.cli.conftest import CommandLine, fresh
from tests.integration.cli.test_start_and_show import until_shown

NAMES = ("eu\\night", "eu\\depot", 'eu"day', '"', "eu\\", "it's", "a\tb", "50%_!", "plain")
OF_BATCHES = ('"', "eu\\", "it's")
"""`make test` has these as ids of batches, one for each form of a condition on an id."""

OF_LABELS = ("eu\\night", "a\tb", "50%_!")


@pytest.mark.parametrize("name", mostly_slow(NAMES, OF_LABELS))
async def test_a_label_selects_exactly_its_sagas(cli: CommandLine, name: str) -> None:
    ids = {}
    for mode in (name, name.upper(), name.replace("\\", "\\\\"), name + "x"):
        ids.setdefault(mode, fresh("labelled"))
        assert (await cli.saga("start", "trip", "--input", json.dumps({"mode": mode}), "--id", ids[mode])).code == 0
    words = ("list", "--limit", "10000", "--label")
    for mode, id in ids.items():
        await until_shown(cli, (*words, f"mode={mode}"), lambda rows, id=id: id in [row["id"] for row in rows])
    listed = (await cli.saga("--json", *words, f"mode={name}")).json
    assert {row["labels"]["mode"] for row in listed} == {name}
    ended = (await cli.saga("--json", *words, f"mode={name}", "--state", "COMPLETED", "--saga", "trip")).json
    assert ids[name] in [row["id"] for row in ended]


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("name", mostly_slow([name for name in NAMES if name.isprintable()], OF_BATCHES))
async def test_a_batch_is_cancelled_whole_and_alone(cli: CommandLine, name: str) -> None:
    batch = f"{name}{fresh('b')}{name}"
    others = {batch.upper(), batch + "x"}
    started: dict[str, list[str]] = {}
    for each in (batch, *others):
        started[each] = [fresh("row"), fresh("row")]
        rows = cli.folder / "rows.jsonl"
        rows.write_text("".join(json.dumps({"id": id, "input": {}}) + "\n" for id in started[each]), encoding="utf-8")
        words = ("start", "ask", "--from", str(rows), "--batch", each, "--detach")
        answer = await cli.saga(*words)
        assert answer.code == 0, answer
    for each in started:
        await until_shown(cli, ("batch", "show", each), lambda shown: shown["sagas"].get("RUNNING") == 2)
    answer = await cli.saga("batch", "cancel", batch, "--yes", "--reason", "a test")
    assert (answer.code, "2 sagas cancelled" in answer.out + answer.err) == (0, True), answer
    await until_shown(cli, ("batch", "show", batch), lambda shown: shown["sagas"] == {"COMPENSATED": 2})
    for other in others:
        shown = (await cli.saga("--json", "batch", "show", other)).json
        assert shown["sagas"] == {"RUNNING": 2}
        assert (await cli.saga("batch", "cancel", other, "--yes", "--reason", "the end")).code == 0


@pytest.mark.parametrize("command", ["list", "cancel", "pause"])
async def test_a_filter_that_cannot_match_is_refused_at_once(cli: CommandLine, command: str) -> None:
    more = {"list": (), "cancel": ("--yes", "--reason", "a test"), "pause": ("--yes",)}[command]
    answer = await cli.saga(command, "--where", "WorkflowId = 'eu\\depot'", *more)
    assert answer.code == 2
    assert "Temporal cannot compare eu\\depot" in answer.err
    assert "STARTS_WITH" in answer.err
