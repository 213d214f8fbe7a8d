"""Each command about a saga whose run was reset in Temporal, or deleted there, as at the end of its retention."""

from __future__ import annotations

import pytest

from tests.helpers.run_changes import delete_run, reset_run
from tests.integration.cli.conftest import CommandLine, fresh
from tests.integration.cli.test_start_and_show import state_of, until_shown


async def wait_for_approval(cli: CommandLine, id: str) -> None:
    await until_shown(cli, ("show", id), lambda story: state_of(story, 1) == "RUNNING")


async def waiting_after_reset(cli: CommandLine) -> str:
    """The id of a saga that waits for its approval, in a run that a reset has started."""
    id = fresh("reset")
    await cli.saga("start", "ask", "--id", id)
    await wait_for_approval(cli, id)
    await reset_run(cli.client.temporal, id)
    await wait_for_approval(cli, id)
    return id


async def listed(cli: CommandLine, id: str) -> list[str]:
    """The states in which the saga is listed."""
    rows = (await cli.saga("--json", "list")).json
    return [row["state"] for row in rows if row["id"] == id]


async def test_an_open_saga_goes_on_in_its_reset_run(cli: CommandLine) -> None:
    id = await waiting_after_reset(cli)
    await until_shown(cli, ("list",), lambda rows: [row["state"] for row in rows if row["id"] == id] == ["RUNNING"])
    assert (await cli.saga("list", "--stuck")).code == 0
    assert (await cli.saga("start", "ask", "--id", id)).code == 0, "the same start"
    assert (await cli.saga("pause", id)).code == 0
    assert (await cli.saga("resume", id)).code == 0
    assert (await cli.saga("signal", id, "approve", "--data", '{"by": "ada"}')).code == 0
    assert (await cli.saga("watch", id)).code == 0
    assert (await cli.saga("show", id)).code == 0
    assert (await cli.saga("undo", id, "--yes", "--reason", "a test")).code == 0
    await until_shown(cli, ("show", id), lambda story: story["state"] == "COMPENSATED")
    assert len(await listed(cli, id)) == 1


async def test_a_reset_saga_is_cancelled(cli: CommandLine) -> None:
    id = await waiting_after_reset(cli)
    assert (await cli.saga("cancel", id, "--reason", "a test", "--wait")).code == 6
    assert (await cli.saga("--json", "show", id)).json["state"] == "COMPENSATED"
    await until_shown(cli, ("list",), lambda rows: [row["state"] for row in rows if row["id"] == id] == ["COMPENSATED"])


COMMANDS = (
    ("show", "{}"),
    ("watch", "{}"),
    ("open", "{}"),
    ("signal", "{}", "approve"),
    ("cancel", "{}", "--reason", "a test"),
    ("undo", "{}", "--yes", "--reason", "a test"),
    ("resolve", "{}", "hold", "retry", "--reason", "a test"),
    ("pause", "{}"),
    ("resume", "{}"),
)


@pytest.fixture
async def deleted(cli: CommandLine) -> str:
    """The id of a saga that has ended, and whose run Temporal has deleted; no ledger has it."""
    id = fresh("deleted")
    assert (await cli.saga("start", "trip", "--id", id, "--wait")).code == 0
    await delete_run(cli.client.temporal, id)
    await until_shown(cli, ("list",), lambda rows: id not in [row["id"] for row in rows])
    return id


async def test_a_run_beyond_its_retention_is_unknown_to_every_command(cli: CommandLine, deleted: str) -> None:
    for words in COMMANDS:
        answer = await cli.saga(*(word.format(deleted) for word in words))
        assert (answer.code, answer.out) == (2, ""), (words, answer)
        assert f"there is no saga with the id {deleted}" in answer.err, (words, answer)
    assert await listed(cli, deleted) == []
