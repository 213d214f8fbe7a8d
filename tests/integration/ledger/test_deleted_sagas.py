"""The commands about a saga whose run was deleted: the ledger has its claim, and the guard its effect."""

from __future__ import annotations

import asyncio

from saga_workers.location import deleted_runs
from tests.helpers.run_changes import delete_run
from tests.helpers.waiting import until
from tests.integration.cli.conftest import fresh
from tests.integration.ledger.conftest import Stay


async def test_each_command_leads_to_a_resume(stay: Stay, monkeypatch) -> None:
    monkeypatch.setattr(deleted_runs, "MIN_CLAIM_AGE", 0.0)
    broken = stay.folder / "broken"
    broken.touch()
    city = fresh("lima")
    id = f"outing-{city}"
    assert (await stay.saga("start", "outing", "--set", f"city={city}")).code == 0

    async def parked() -> bool:
        return (await stay.client.show(id))["state"] == "PARKED"

    await until(parked)
    await stay.wait_for_row(id, "PARKED")
    await delete_run(stay.client.temporal, id)

    async def deleted() -> bool:
        return (await stay.client.locator.within_temporal().locate(id)).home is None

    await until(deleted)
    listed = await stay.saga("list", "--stuck")
    assert f"saga resume {id}" in " ".join(listed.out.split())
    doctor = await stay.saga("--json", "doctor")
    [stuck] = [result for result in doctor.json if result["check"] == "sagas"]
    assert (stuck["ok"], stuck["help"]) == (False, f"saga resume {id}")

    shown = await stay.saga("--json", "show", id)
    assert shown.json["state"] == "PARKED"
    assert f"saga resume {id}" in shown.json["stuck"][0]
    cancelled = await stay.saga("cancel", id)
    assert (cancelled.code, f"saga resume {id}" in cancelled.err) == (9, True)

    await asyncio.to_thread(broken.unlink)
    resumed = await stay.saga("--json", "resume", id)
    assert resumed.json == {"id": id, "response": "started again", "state": "RUNNING"}
    assert (await stay.saga("watch", id)).code == 0
    assert stay.query("select count(*) from rooms where city = %s", city) == [(1,)]
    assert (await stay.saga("--json", "show", id)).json["state"] == "COMPLETED"
    [stuck] = [result for result in (await stay.saga("--json", "doctor")).json if result["check"] == "sagas"]
    assert stuck["ok"] is True
