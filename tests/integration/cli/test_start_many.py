"""`saga start --from`: one saga per row, restartable, stopped by failures and by Ctrl-C."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import signal
import sys
from pathlib import Path

import pytest
from temporalio.client import Client as Temporal

from saga_cli.commands.run import batch_run
from saga_workers.interventions import signal_message
from saga_workers.temporal import saga_runs
from saga_workers.temporal.temporal_runs import RunDescription, describe_run
from tests.helpers.waiting import LIMIT
from tests.integration.cli.conftest import CommandLine, fresh


def write(cli: CommandLine, name: str, lines: list[str]) -> Path:
    file = cli.folder / name
    file.write_text("\n".join(lines) + "\n")
    return file


@pytest.mark.slow
async def test_each_row_starts_one_saga_and_a_rerun_starts_none(cli: CommandLine) -> None:
    rows = [json.dumps({"nights": number, "mode": "reject" if number == 7 else "ok"}) for number in range(40)]
    file = write(cli, "trips.jsonl", rows)
    first = await cli.saga("--json", "start", "trip", "--from", str(file), "--concurrency", "8")
    assert first.code == 1, first
    assert first.json["started"] == 40
    assert first.json["ended"] == {"COMPLETED": 39, "COMPENSATED": 1}
    second = await cli.saga("--json", "start", "trip", "--from", str(file))
    assert second.code == 1, second
    assert (second.json["started"], second.json["existing"]) == (0, 40)
    assert second.json["ended"] == first.json["ended"]
    tolerant = await cli.saga("start", "trip", "--from", str(file), "--tolerate", "10%")
    assert tolerant.code == 0, tolerant
    assert "now: 1 COMPENSATED, 39 COMPLETED" in tolerant.out


async def test_a_saga_that_ends_while_it_is_described_counts_with_its_end(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = fresh("ends")
    file = write(cli, "one.jsonl", [json.dumps({"number": id})])

    async def described_late(temporal: Temporal, saga_id: str, run_id: str = "") -> RunDescription | None:
        description = await describe_run(temporal, saga_id, run_id)
        if description is not None and description.run.running:
            handle = temporal.get_workflow_handle(id)
            await handle.signal("delivered", signal_message("delivered", {}, by="the test", reject=None))
            await handle.result()
            await asyncio.sleep(0.5)  # the command waits for the same end
        return description

    monkeypatch.setattr(saga_runs, "describe_run", described_late)
    answer = await cli.saga("--json", "start", "order", "--from", str(file))
    assert answer.json["ended"] == {"COMPLETED": 1}


async def test_tolerated_failures_of_an_earlier_run_count_as_success(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_run, "_LINE_INTERVAL", 0.02)
    rows = [json.dumps({"nights": number, "mode": "reject" if number == 3 else "ok"}) for number in range(10)]
    file = write(cli, "tolerated.jsonl", rows)
    answer = await cli.saga("--json", "start", "trip", "--from", str(file), "--tolerate", "1")
    assert answer.code == 0, answer
    assert re.search(r"^trip: \d+ of 10 rows(: \d+ COMP|$)", answer.err, re.MULTILINE), answer.err
    assert answer.json["ended"] == {"COMPLETED": 9, "COMPENSATED": 1}
    assert (answer.json["running"], answer.json["not_started"]) == (0, 0)


async def test_csv_cells_are_converted_by_the_schema(cli: CommandLine) -> None:
    file = write(cli, "trips.csv", ["mode,nights", "ok,3", "ok,"])
    answer = await cli.saga("--json", "start", "trip", "--from", str(file), "--batch", "spring")
    assert answer.code == 0, answer
    story = (await cli.saga("--json", "show", "spring-1")).json
    assert story["input"] == {"mode": "ok", "nights": 3}
    assert story["labels"]["batch"] == "spring"
    assert (await cli.saga("--json", "show", "spring-2")).json["input"] == {"mode": "ok"}


async def test_ids_come_from_the_definition(cli: CommandLine) -> None:
    file = write(cli, "orders.jsonl", ['{"number": "row-a"}', '{"number": "row-b"}'])
    answer = await cli.saga("--json", "start", "order", "--from", str(file), "--detach")
    assert answer.code == 0, answer
    for id in ("row-a", "row-b"):
        assert (await cli.saga("signal", id, "delivered")).code == 0
        assert (await cli.saga("watch", id)).code == 0


async def test_rows_of_every_kind_of_file_are_the_same_sagas(cli: CommandLine) -> None:
    """A row is a saga by its id, however its number is written."""
    csv, lines = write(cli, "n.csv", ["n", "12.0", "13"]), write(cli, "n.jsonl", ['{"n": 1.2e1}', '{"n": 13.00}'])
    array, packed = write(cli, "n.json", ['[{"n": 12}, {"n": 13}]']), cli.folder / "n.csv.gz"
    packed.write_bytes(gzip.compress(csv.read_bytes()))
    started = []
    for file in (csv, lines, array, packed):
        answer = await cli.saga("--json", "start", "numbered", "--from", str(file))
        assert answer.code == 0, answer
        started.append((answer.json["started"], answer.json["existing"]))
    assert started == [(2, 0), (0, 2), (0, 2), (0, 2)]
    again = await cli.saga("--json", "start", "numbered", "--set", "n=12.0")
    assert (again.json["id"], again.json["started"]) == ("numbered-12", False)
    story = (await cli.saga("--json", "show", "numbered-12")).json
    assert (story["input"], story["labels"]["n"], story["output"]) == ({"n": 12}, "12", {"n": 12})


async def test_a_sensitive_input_is_masked_where_people_read_it(cli: CommandLine) -> None:
    given = '{"n": 99, "who": {"card": "4111 hush"}}'
    assert (await cli.saga("start", "numbered", "--input", given, "--wait")).code == 0
    for words in (("--json", "show", "numbered-99"), ("show", "numbered-99", "--html", str(cli.folder / "a.html"))):
        answer = await cli.saga(*words)
        assert answer.code == 0
        assert "hush" not in answer.out
    assert "hush" not in (cli.folder / "a.html").read_text()
    assert (await cli.saga("--json", "show", "numbered-99")).json["input"] == {"n": 99, "who": {"card": "•••"}}
    assert (await cli.saga("--json", "start", "numbered", "--input", given)).json["started"] is False
    answer = await cli.saga("start", "numbered", "--input", '{"n": 98, "who": {"card": "4111 hush, too long"}}')
    assert answer.code == 2
    assert "input.who.card: the value has more characters than 10" in answer.err
    assert "hush" not in answer.err


async def test_failures_above_the_tolerance_stop_the_bulk_start(cli: CommandLine) -> None:
    file = write(cli, "bad.jsonl", [json.dumps({"mode": "reject", "nights": number}) for number in range(50)])
    words = ("start", "trip", "--from", str(file), "--concurrency", "1", "--tolerate", "4%")
    answer = await cli.saga("--json", *words)
    assert answer.code == 1
    assert answer.json["stopped"] == "failures"
    assert 3 <= answer.json["started"] < 10
    assert "paused: " in answer.err


@pytest.mark.parametrize(
    ("name", "lines", "message"),
    [
        ("a.jsonl", ["{}", '{"nights": "x"}'], "a.jsonl:2: the input of trip is not valid: input.nights"),
        ("b.jsonl", ["{}", "", "{nights}"], "b.jsonl:3: not JSON"),
        ("c.csv", ["nights", "3", "x"], "c.csv:3: column nights: 'x' is not a whole number"),
        ("d.csv", ["nights", "3,4"], "d.csv:2: 2 cells, but the header has 1"),
        ("e.txt", ["{}"], "--from takes a .jsonl, .json, .csv or .parquet file"),
    ],
)
async def test_a_bad_row_names_its_line_and_starts_nothing(
    cli: CommandLine, name: str, lines: list[str], message: str
) -> None:
    file = write(cli, name, lines)
    answer = await cli.saga("start", "trip", "--from", str(file), "--batch", f"none-{name[0]}")
    assert answer.code == 2
    assert message in answer.err
    assert (await cli.saga("show", f"none-{name[0]}-1")).code == 2


@pytest.mark.parametrize(("name", "lines"), [("f.jsonl", []), ("g.jsonl", ["", ""]), ("h.csv", ["nights"])])
async def test_a_file_without_rows_starts_nothing(cli_without_worker: CommandLine, name: str, lines: list[str]) -> None:
    file = write(cli_without_worker, name, lines)
    answer = await cli_without_worker.saga("start", "trip", "--from", str(file))
    assert (answer.code, answer.out) == (0, "0 rows: the file has none, so nothing was started\n")
    assert (await cli_without_worker.saga("--json", "start", "trip", "--from", str(file))).json["total"] == 0


async def test_duplicate_row_ids_are_refused(cli: CommandLine) -> None:
    file = write(cli, "twice.jsonl", ['{"number": "same-1"}', '{"number": "same-1"}'])
    answer = await cli.saga("start", "order", "--from", str(file))
    assert answer.code == 2
    assert "twice.jsonl:2: the id same-1 is also that of" in answer.err


async def test_a_forbidden_id_keeps_all_rows_from_starting(cli: CommandLine) -> None:
    first = fresh("allowed")
    file = write(cli, "ids.jsonl", [json.dumps({"number": first}), json.dumps({"number": "D/2"})])
    answer = await cli.saga("start", "order", "--from", str(file))
    assert answer.code == 2, answer
    assert "ids.jsonl:2: " in answer.err
    assert (await cli.saga("show", first)).code == 2


async def test_labels_that_cannot_be_stored_keep_all_rows_from_starting(cli: CommandLine) -> None:
    (cli.folder / "labelled.saga.yaml").write_text(
        "saga: labelled\ninput: {type: object, required: [id, place], properties: {id: {type: string}, place: {}}}\n"
        'id: "${{ input.id }}"\nlabels: {place: "${{ input.place }}"}\n'
        "steps: [{id: a, uses: require, with: {that: true}}]\n"
    )
    first = fresh("labelled")
    rows = [{"id": first, "place": "x"}, {"id": fresh("labelled"), "place": "x" * 5000}]
    file = write(cli, "labels.jsonl", [json.dumps(row) for row in rows])
    answer = await cli.saga("start", "labelled", "--from", str(file))
    assert answer.code == 2, answer
    assert "labels.jsonl:2: the labels have" in answer.err
    assert (await cli.saga("show", first)).code == 2


async def test_ctrl_c_stops_the_bulk_start_and_says_how_to_continue(cli: CommandLine) -> None:
    """Through the real executable: only a process of its own gets a signal of its own."""
    file = write(cli, "long.jsonl", [json.dumps({"nights": number}) for number in range(2000)])
    argv = [sys.executable, "-P", "-m", "saga_cli.main", "start", "trip", "--from", str(file), "--rate", "20"]
    argv += ["--config", str(cli.folder / "saga.toml"), "--batch", "long"]
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(*argv, stdout=pipe, stderr=pipe)
    async with asyncio.timeout(LIMIT):
        while (await cli.saga("show", "long-3")).code:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.1)
        child.send_signal(signal.SIGINT)
        _, reported = await child.communicate()
    assert child.returncode == 130, reported
    assert "run the same command again to continue" in reported.decode()
    assert (await cli.saga("show", "long-2000")).code == 2


async def test_a_row_that_cannot_be_started_does_not_stop_the_others(cli: CommandLine) -> None:
    first, taken, last = fresh("row"), fresh("row"), fresh("row")
    await cli.client.start("trip", {"nights": 1}, id=taken)
    file = cli.folder / "orders.jsonl"
    file.write_text("".join(json.dumps({"number": number}) + "\n" for number in (first, taken, last)))
    answer = await cli.saga("--json", "start", "order", "--from", str(file), "--concurrency", "1", "--detach")
    assert answer.code == 1, answer
    assert (answer.json["started"], answer.json["refused"]) == (2, 1)
    assert f"the id {taken} belongs to a run of the saga trip" in answer.json["troubles"][0]
    shown = await cli.saga("--json", "batch", "show", answer.json["batch"])
    assert shown.json["refusals"] == [answer.json["troubles"][0]]
    assert f"orders.jsonl:2: the id {taken}" in (await cli.saga("batch", "show", answer.json["batch"])).out
    for id in (first, last):
        await cli.saga("signal", id, "delivered")
        assert (await cli.saga("watch", id)).code == 0
