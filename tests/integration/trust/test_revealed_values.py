"""`saga show --reveal` shows `x-sensitive` values in clear, to who has the key, and the ledger records each look."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import Any

import pytest

from saga_workers.client import Client
from sagas.project import Project
from tests.helpers.forked_commands import run_command
from tests.helpers.local_worker import finished
from tests.helpers.processes import WorkerProcess
from tests.integration.trust.test_encrypted_values import CARD, new_key, project, shop

__all__ = ["project", "shop"]  # fixtures


def shown(folder: Path, saga_id: str, *options: str) -> dict[str, Any]:
    done = run_command(["show", saga_id, "--json", *options], folder)
    assert done.returncode == 0, done
    return json.loads(done.stdout)


@pytest.fixture(autouse=True)
def operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "SAGA_USER", "ada")


@pytest.mark.slow
async def test_who_has_the_key_sees_the_values_and_is_recorded(project: Project, tmp_path: Path) -> None:
    saga_id, declined = (f"{name}-{uuid.uuid4()}" for name in ("returns", "declined"))
    with WorkerProcess("worker", tmp_path):
        async with await Client.connect(project) as client:
            await client.start("returns", {"card": CARD}, id=saga_id)
            await client.start("declined", {"card": CARD}, id=declined)
            assert (await finished(client, saga_id))["state"] == "COMPLETED"
            assert (await finished(client, declined))["state"] == "COMPENSATED"
        masked = shown(tmp_path, saga_id)
        assert (masked["input"], masked["output"], "accesses" in masked) == (
            {"card": "•••"},
            {"•••": "•••"},
            False,
        )
        clear = shown(tmp_path, saga_id, "--reveal", "--reason", f"a complaint of {CARD['name']}")
        assert (clear["input"], clear["output"], clear["steps"][0]["result"]) == ({"card": CARD}, CARD, CARD)
        for reason in ([], ["--reason", " "]):
            unsaid = run_command(["show", saga_id, "--reveal", *reason], tmp_path)
            assert (unsaid.returncode, "--reason is missing" in unsaid.stderr) == (2, True), unsaid
            assert CARD["name"] not in unsaid.stdout
        text = run_command(["show", saga_id, "--reveal", "--reason", "asked", "--as", "eve"], tmp_path).stdout
        for name in ("input", "a result", "output"):
            [line] = [line for line in text.split("\n\n")[-1].splitlines() if line.startswith(f"{name} ")]
            assert CARD["name"] in line
    # Without a worker: from the state with which it can be undone, in the ledger.
    later = shown(tmp_path, saga_id, "--reveal", "--reason", "asked", "--as", "bob")
    assert (later["input"], later["output"]) == ({"card": CARD}, CARD)
    # One that cannot be undone has no such state, and its history has the input.
    why = "results and messages are masked, as no worker answers"
    rest = shown(tmp_path, declined, "--reveal", "--reason", "asked")
    assert (rest["input"], rest["steps"][0]["result"], rest["incomplete"]) == (
        {"card": CARD},
        {"charged": {"•••": "•••"}},
        why,
    )
    key = (tmp_path / "codec.key").read_text()
    (tmp_path / "codec.key").write_text(new_key())
    refused = run_command(["show", saga_id, "--reveal", "--reason", "asked"], tmp_path)
    assert (refused.returncode, "cannot be read" in refused.stderr) == (1, True), refused
    (tmp_path / "codec.key").write_text(key)
    after = shown(tmp_path, saga_id)
    assert [(access["who"], access["what"], access["reason"]) for access in after["accesses"]] == [
        ("ada", "reveal", "a complaint of •••"),
        ("eve", "reveal", "asked"),
        ("bob", "reveal", "asked"),
    ]
    assert after["input"] == {"card": "•••"}
    text = run_command(["show", saga_id], tmp_path).stdout
    assert "ada has seen sensitive values in clear, because a complaint of •••" in text
