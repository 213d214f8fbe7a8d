"""A nested saga whose name is computed, and whose parent is started again only to be undone."""

from __future__ import annotations

import pytest

from tests.helpers.local_worker import finished
from tests.helpers.run_changes import delete_run
from tests.integration.engine.environment import Environment, begin
from tests.integration.engine.nested.families import GO, book, define, define_child, delete_and_resume
from tests.integration.engine.repeated_runs import waits_at

PICK = "{id: pick, uses: pass, with: {result: {region: eu}}}"
PARENT = define(
    "parent",
    book("a"),
    PICK,
    "{id: child, uses: saga, with: {name: \"${{ {'eu': 'child', 'us': 'other'}[steps.pick.result.region] }}\"}}",
    GO,
    book("z"),
)
CHILD = define_child(book("x"), book("y"))
OTHER = define("other", book("w"))


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("child_is", ["kept", "deleted"])
async def test_its_effects_are_undone_with_the_parent(env: Environment, child_is: str) -> None:
    async with env.serving(PARENT, CHILD, OTHER) as client:
        id = await begin(client, "parent")
        await waits_at(client, id)
        assert await env.effects() == ["a", "x", "y"]
        if child_is == "deleted":
            await delete_run(client.temporal, f"{id}/child")
        await delete_and_resume(client, id)
        await client.cancel(id)
        story = await finished(client, id)
        assert (story["state"], await env.effects()) == ("COMPENSATED", [])
