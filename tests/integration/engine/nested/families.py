"""Parents and nested sagas for the tests of this folder, and the ways in which a run of one is replaced."""

from __future__ import annotations

import pytest

from saga_workers.client import Client
from saga_workers.stuck.resumption import start_again
from saga_workers.stuck.stuck_sagas import list_stuck
from saga_workers.views.saga_list import SagaFilter
from tests.helpers.run_changes import delete_run, reset_run
from tests.helpers.waiting import until
from tests.integration.engine.environment import begin
from tests.integration.engine.repeated_runs import waits_at

GO = "{id: go, uses: wait, with: {signal: go}}"
"""A step that waits until the test goes on."""


def define(name: str, *steps: str, output: str | None = None) -> str:
    """The definition of a saga with these steps; ``output`` is an expression."""
    lines = [f"saga: {name}", "steps:", *(f"  - {step}" for step in steps)]
    return "\n".join([*lines, *([] if output is None else [f'output: "${{{{ {output} }}}}"'])])


def book(id: str, more: str = "compensate: unbook") -> str:
    """A step that writes a row under its id, and deletes it when it is undone."""
    return f"{{id: {id}, uses: book, {more}}}"


def nested(id: str, name: str, more: str = "") -> str:
    """A step that runs a nested saga."""
    return f"{{id: {id}, uses: saga, with: {{name: {name}}}{', ' if more else ''}{more}}}"


def define_parent(*later: str, child: str = "") -> str:
    """A saga that books `a`, runs the nested saga `child`, whose result is its output, and goes on with ``later``."""
    return define("parent", book("a"), nested("child", "child", child), *later, output="{'child': steps.child.result}")


COMMITTED = define(
    "parent",
    book("a", "pivot: true"),
    nested("child", "child", "on_failure: park"),
    output="{'child': steps.child.result}",
)
"""A parent that is past its commit point when its nested saga begins."""


def define_child(*steps: str) -> str:
    """A nested saga with these steps, whose output is that of its step `y`."""
    return define("child", *steps, output="steps.y.result.value")


async def begin_waiting_child(client: Client) -> str:
    """Start the parent, and wait until its nested saga waits."""
    id = await begin(client, "parent")
    await waits_at(client, f"{id}/child")
    return id


async def has_state(client: Client, id: str, state: str) -> None:
    """Wait until the saga is in this state."""

    async def is_so() -> bool:
        if (await client.locator.locate(id)).kind == "unknown":
            return False
        return (await client.show(id))["state"] == state

    await until(is_so)


async def reset(client: Client, id: str) -> None:
    """Reset the newest run of the saga to its first task."""
    await reset_run(client.temporal, id)


async def delete_and_resume(client: Client, id: str) -> None:
    """Delete the newest run of the saga, and start the saga again."""
    await delete_run(client.temporal, id)
    await start_again(client, await client.locator.locate(id), not_ended=True)


REPLACED = pytest.mark.parametrize("replace", [reset, delete_and_resume])
"""The run of the parent is replaced by another one."""


async def advice_of(client: Client, id: str) -> str:
    """The reasons why `saga list --stuck` shows the saga."""
    stuck = list_stuck(client.locator, SagaFilter(), limit=1000)
    return " ".join([reason async for view in stuck if view.id == id for reason in view.stuck or ()])
