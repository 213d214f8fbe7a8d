"""Masks the `x-sensitive` values of a saga in what people write about it, such as the reason of a request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from saga_workers.location.location import Location
from saga_workers.location.locator import Locator
from saga_workers.privacy.saga_values import read_input, read_state
from sagas.definition.sensitivity import SensitiveMask, sensitive_values
from sagas.definition.snapshot import from_snapshot
from sagas.errors import SagaError
from sagas.project import Project
from sagas.text.printable import MASK


async def word_mask(locator: Locator, project: Project | None, saga_id: str) -> Callable[[str], str]:
    """A function that returns words without the values of the saga; `•••` alone if these cannot be read here, to
    compare.
    """
    try:
        values = await sensitive_values_of(locator, project, saga_id)
    except SagaError:
        values = None
    return _all_masked if values is None else SensitiveMask(values).text


def _all_masked(_: str) -> str:
    return MASK


async def sensitive_values_of(locator: Locator, project: Project | None, saga_id: str) -> frozenset[str] | None:
    """The sensitive values of one saga; None if nobody knows them any more. Raises SagaError if they are encrypted with
    a key that is not here.
    """
    location = await locator.locate(saga_id)
    state = await read_state(locator, location)
    if state is not None:
        return sensitive_values(from_snapshot(state["definition"]).input, state["input"])
    given = await read_input(locator, location)
    if given is None and location.run is not None:
        raise SagaError(
            f"the values of {saga_id} cannot be read here: they are encrypted with a key that is not in [codec]",
            help="run the command where the key is",
        )
    schema = await _schema(project, location)
    return None if given is None or schema is None else sensitive_values(schema, given)


async def _schema(project: Project | None, location: Location) -> Any:
    """The schema of the input in the project's definition: without a worker nobody tells that of the run."""
    name = None if location.run is None else location.run.run.workflow_type
    if name is None or project is None:
        return None
    definitions = await asyncio.to_thread(lambda: project.definitions)  # parsed by the first who asks
    return definitions[name].input if name in definitions else None
