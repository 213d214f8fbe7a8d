"""An internal error about one run hides no other saga of a list."""

from __future__ import annotations

from typing import Any

import pytest

from saga_workers.stuck import stuck_sagas
from saga_workers.views import saga_list
from tests.helpers.waiting import until
from tests.integration.cli.conftest import fresh
from tests.integration.ledger.conftest import Stay


async def test_both_lists_go_on_behind_a_run_that_cannot_be_read(stay: Stay, monkeypatch: pytest.MonkeyPatch) -> None:
    (stay.folder / "broken").touch()
    bad, good = [(await stay.client.start("outing", {"city": fresh("oslo")})).id for _ in range(2)]
    for id in (bad, good):
        await stay.wait_for_row(id, "PARKED")
    view_at, inspect = saga_list.view_at, stuck_sagas.inspect_run

    async def read_one(locator: Any, location: Any, **options: Any) -> Any:
        return [][1] if location.saga_id == bad else await view_at(locator, location, **options)

    async def inspect_run(locator: Any, run: Any, *others: Any) -> Any:
        return [][1] if run.id == bad else await inspect(locator, run, *others)

    monkeypatch.setattr(saga_list, "view_at", read_one)
    monkeypatch.setattr(stuck_sagas, "inspect_run", inspect_run)
    why = "it cannot be read here, because of a bug in saga (IndexError: list index out of range)"
    for command, field in ((("list",), "incomplete"), (("list", "--stuck"), "stuck")):

        async def listed(command: tuple[str, ...] = command) -> dict[str, Any]:
            rows = {row["id"]: row for row in (await stay.saga("--json", *command, "--limit", "1000")).json}
            return rows if {bad, good} <= rows.keys() else {}

        rows = await until(listed)
        assert rows[bad][field] in (why, [why])
        assert rows[good].get(field) not in (why, [why])
