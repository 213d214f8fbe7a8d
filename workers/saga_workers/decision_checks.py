"""The checks of an operator's decision before it is sent, and the keys that sign it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from saga_workers.location.locator import Locator
from saga_workers.views.saga_view import read_view
from sagas.errors import UsageError
from sagas.protocol.saga_view import SagaView
from sagas.settings import Settings
from sagas.settings.signing_keys import SigningKeys
from sagas.text.exact_json import readable_json
from sagas.text.printable import MASK
from sagas.text.shell import saga_command

if TYPE_CHECKING:
    from sagas.actions.registry import Action, Actions


async def check_answer(
    locator: Locator, saga_id: str, decision: Mapping[str, Any], load_actions: Callable[[], Actions]
) -> str | None:
    """Raise UsageError if the new arguments or the result have a masked value, or if the step's action, which this
    project has, does not take the arguments or does not return such a result.

    Returns why that could not be compared; None if it was, or if there is nothing to compare.
    ``load_actions`` returns those of the project.
    """
    for name in ("with", "result"):
        if MASK in readable_json(decision[name]):
            raise UsageError(f"--{name} has {MASK}, which only stands for a hidden value: write the value itself")
    settings = locator.settings
    if (decision["with"] is None and decision["result"] is None) or settings is None or settings.config_file is None:
        return None
    op, uses = _decided_action(await read_view(locator, saga_id), decision["step"])
    try:
        actions = await asyncio.to_thread(load_actions)
    except UsageError as error:
        # The actions run on the workers; a machine from which people decide may lack what they import.
        return f"the answer is not compared with the signature of {uses}: {error.message}"
    action = actions.get(uses or "")
    if action is not None:
        await asyncio.to_thread(_compare, action, op, decision)
    return None


def _compare(action: Action, op: str, decision: Mapping[str, Any]) -> None:
    from sagas.definition.action_arguments import bind, returned_problem

    help = saga_command("actions", action.name)
    if decision["with"] is None:
        if op == "do" and (problem := returned_problem(action, decision["result"])) is not None:
            raise UsageError(f"--result does not fit: {action.name}: {problem}", help=help)
        return
    try:
        bind(action, decision["with"])
    except ValueError as error:
        raise UsageError(f"--with does not fit: {error}", help=help) from None


def _decided_action(view: SagaView, entry: str) -> tuple[str, str | None]:
    """The operation of an entry that a decision is about, which is parked or retried, and its action."""
    step = next((step for step in view.steps if step.id == entry), None)
    if step is None:
        return "do", None
    for op, operation in (("undo", step.compensation), ("confirm", step.confirmation)):
        if operation is not None and operation.state in ("RUNNING", "PARKED"):
            return op, operation.uses
    return "do", step.uses


def decision_keys(settings: Settings, decision: Mapping[str, Any]) -> SigningKeys | None:
    """The keys for a decision: a worker takes new arguments from no other client, and the name as proven. Other
    decisions need no project, and no key.
    """
    if decision["with"] is None and decision["definition"] is None:
        with contextlib.suppress(UsageError):
            return settings.signing_keys(create=False)
        return None
    return settings.signing_keys(create=settings.config_file is not None)
