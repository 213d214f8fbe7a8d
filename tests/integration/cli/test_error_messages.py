"""Every mistake gives a one-line error and an exit code."""

from __future__ import annotations

import pytest

from tests.integration.cli.conftest import CommandLine


@pytest.mark.parametrize(
    ("args", "exit_code", "message"),
    [
        (("start", "tripp"), 2, "did you mean trip?"),
        (("start", "trip", "--input", "{nights: 3}"), 2, "--input is not JSON"),
        (("start", "trip", "--input", "@/nowhere.json"), 2, "/nowhere.json cannot be read"),
        (("start", "trip", "--set", "nights"), 2, "--set takes key=value"),
        (("start", "trip", "--set", "nights=many"), 2, "nights: 'many' is not a whole number"),
        (("start", "trip", "--set", "stars=5"), 2, "stars"),
        (("start", "order"), 2, "needs `number`"),
        (("start", "trip", "--timeout", "5s"), 2, "--timeout needs --wait"),
        (("start", "trip", "--wait", "--timeout", "soon"), 2, "`soon` is not a duration"),
        (("start", "trip", "--from", "/nowhere.jsonl"), 2, "there is no file /nowhere.jsonl"),
        (("start", "trip", "--from", "x.jsonl", "--wait"), 2, "inputs and ids come from the rows"),
        (("start", "trip", "--detach"), 2, "need --from"),
        (("start", "trip", "--id", "x~undo"), 2, "must not end in ~undo"),
        (("start", "trip", "--id", ""), 2, "is empty"),
        (("show", "nobody-knows-me"), 2, "there is no saga with the id nobody-knows-me"),
        (("show", "x", "--reveal"), 2, "--reveal needs a ledger, which records it"),
        (("watch", "nobody-knows-me"), 2, "there is no saga with the id"),
        (("watch", "x", "--until", "done"), 2, "--until takes `parked`"),
        (("open", "nobody-knows-me"), 2, "there is no saga with the id"),
        (("list", "--state", "HAPPY"), 2, "there is no state HAPPY"),
        (("list", "--since", "yesterday"), 2, "neither a duration nor a date"),
        (("list", "-l", "mode"), 2, "-l takes name=value"),
        (("list", "--where", "Wrong ="), 2, "Temporal rejects the filter"),
        (("cancel",), 2, "the id of one saga or --where"),
        (("cancel", "nobody-knows-me"), 2, "there is no saga with the id"),
        (("signal", "nobody-knows-me", "x"), 2, "there is no saga with the id"),
        (("signal", "x", "y", "--data", "{"), 2, "--data is not JSON"),
        (("signal", "x", "y", "--data", "1", "--reject", "no"), 2, "give either --data or --reject"),
        (("resolve", "nobody-knows-me", "a", "retry", "--reason", "x"), 2, "there is no saga with the id"),
        (("undo", "nobody-knows-me", "--reason", "x", "--yes"), 2, "there is no saga with the id"),
        (("undo", "x"), 2, "--reason is missing"),
    ],
)
async def test_each_mistake_prints_one_line(
    cli_without_worker: CommandLine, args: tuple[str, ...], exit_code: int, message: str
) -> None:
    answer = await cli_without_worker.saga(*args)
    assert answer.code == exit_code, answer
    assert message in answer.err
    reported = [line for line in answer.err.splitlines() if not line.startswith("→ ")]
    assert reported[0].startswith("error: ")
    assert answer.out == ""


@pytest.mark.parametrize(
    "command",
    [
        ("list",),
        ("cancel", "--yes"),
        ("pause", "--yes"),
        ("resume", "--yes"),
        ("resolve", "a", "retry", "--reason", "x", "--yes"),
    ],
    ids=lambda command: command[0],
)
async def test_a_filter_with_an_unknown_attribute_is_told_as_that(
    cli_without_worker: CommandLine, command: tuple[str, ...]
) -> None:
    for attribute in ("Nonsense", "Saga", "SagaStat"):
        answer = await cli_without_worker.saga(*command, "--where", f"{attribute} = 'trip'")
        assert answer.code == 2
        assert "Temporal rejects the filter" in answer.err, answer.err
        assert attribute in answer.err


async def test_a_long_filter_is_shortened(cli_without_worker: CommandLine) -> None:
    names = ", ".join(f"'order-{number}'" for number in range(2_000))
    for where in (f"WorkflowId IN ({names}", f"Wrong IN ({names})"):
        for command in (("list",), ("cancel", "--yes"), ("resolve", "a", "retry", "--reason", "x", "--yes")):
            answer = await cli_without_worker.saga(*command, "--where", where)
            assert answer.code == 2
            assert "Temporal rejects the filter" in answer.err
            assert len(answer.err) < 1_000


async def test_invalid_yaml_names_file_and_line(cli_without_worker: CommandLine) -> None:
    (cli_without_worker.folder / "trip.saga.yaml").write_text("saga: trip\nsteps: [\n")
    answer = await cli_without_worker.saga("start", "trip")
    assert answer.code == 2
    assert "trip.saga.yaml:" in answer.err


async def test_an_unreachable_server_is_reported(cli_without_worker: CommandLine) -> None:
    config = cli_without_worker.folder / "saga.toml"
    lines = [line for line in config.read_text().splitlines() if not line.startswith("address")]
    config.write_text("\n".join(lines) + '\naddress = "127.0.0.1:1"\n')
    for words in (("start", "trip"), ("list",), ("show", "x"), ("parked",), ("cancel", "x")):
        answer = await cli_without_worker.saga(*words)
        assert answer.code == 1, answer
        assert "no Temporal server answers at 127.0.0.1:1" in answer.err
