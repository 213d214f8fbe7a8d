"""The ends of sagas, as commands show them in a folder without a key of the project."""

from __future__ import annotations

from sagas.protocol.doubtful_outcomes import NOT_VERIFIED
from sagas.settings.signing_keys import KEY_FILE
from tests.helpers.waiting import until
from tests.integration.cli.conftest import CommandLine, fresh


async def test_without_a_key_ends_are_marked_as_not_verified(cli: CommandLine) -> None:
    id = fresh("good")
    assert (await cli.saga("start", "trip", "--id", id, "--wait")).code == 0

    async def listed(*words: str) -> dict[str, object] | None:
        answer = await cli.saga("--json", "list")
        assert answer.err.count(NOT_VERIFIED) == len(words), answer.err
        return next((row for row in answer.json if row["id"] == id and row["state"] == "COMPLETED"), None)

    shown = await cli.saga("--json", "show", id)
    assert ("verified" in shown.json, NOT_VERIFIED in shown.err) == (False, False), shown
    row = await until(listed)
    assert row is not None
    assert "verified" not in row

    (cli.folder / KEY_FILE).rename(cli.folder / "elsewhere.key")
    shown = await cli.saga("--json", "show", id)
    assert (shown.json["state"], shown.json["verified"], shown.err.count(NOT_VERIFIED)) == ("COMPLETED", False, 1)
    shown = await cli.saga("show", id)
    assert ("not verified" in shown.out, shown.err.count(NOT_VERIFIED)) == (True, 1), shown
    row = await listed("once for the whole list")
    assert row is not None
    assert row["verified"] is False
    doctor = await cli.saga("--json", "doctor")
    [keys] = [row for row in doctor.json if row["check"] == "definition keys"]
    assert NOT_VERIFIED in keys["message"], keys
    assert not (cli.folder / KEY_FILE).exists(), "a reader makes no key"
