"""`saga serve` shows and operates sagas whose definition was added after its start, or is not in the project now."""

from __future__ import annotations

import uuid
from pathlib import Path

from saga_workers.client import Client
from sagas.project import Project
from tests.helpers.waiting import until
from tests.integration.serve.served_console import TOKENS, ServedConsole, serving

BEARER = {"Authorization": f"Bearer {TOKENS['CHIEF']}"}


async def test_a_saga_of_a_new_or_a_deleted_definition_is_shown(console: ServedConsole) -> None:
    shown = console.client.project
    [folder] = shown.settings.definitions
    name = f"later-{uuid.uuid4().hex[:8]}"
    file = Path(folder) / f"{name}.saga.yaml"
    risks = "\n".join(f"  - {{id: {id}, uses: work, {more}}}" for id, more in (
        ("block", "compensate: unwork"), ("charge", "pivot: true, on_failure: park, with: {value: {}}"),
    ))  # fmt: skip
    text = f"saga: {name}\nsteps:\n{risks}\n"

    async with console.signed_in("CHIEF") as browser:
        assert (await browser.get("/console/inbox")).status_code == 200
        file.write_text(text)
        try:
            client = Client(console.client.temporal, Project(shown.settings, shown.actions))
            saga_id = (await client.start(name, {})).id

            async def is_shown() -> bool:
                return (await browser.get(f"/console/sagas/{saga_id}")).status_code == 200

            await until(is_shown)
            outcome = await browser.get(f"/sagas/{saga_id}", headers=BEARER)
            assert (outcome.status_code, outcome.json()["id"]) == (200, saga_id)
        finally:
            file.unlink()
    async with serving(console.client) as url:  # a process that has never read the definition
        console = ServedConsole(console.client, url, console.ids)
        async with console.signed_in("CHIEF") as browser:
            outcome = await browser.get(f"/sagas/{saga_id}", headers=BEARER)
            assert (outcome.status_code, outcome.json()["saga"]) == (200, name)
            assert (await browser.get(f"/console/sagas/{saga_id}")).status_code == 200
            assert saga_id in (await browser.get("/console/sagas", params={"saga": name})).text
            paused = await browser.post(f"/sagas/{saga_id}/pause", json={}, headers=BEARER)
            assert paused.status_code in (200, 409), paused.text
    await client.close()
