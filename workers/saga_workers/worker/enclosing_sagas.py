"""Looks up the names of the sagas in which a nested saga runs: a pause of one of these names holds its calls back."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from temporalio.client import Client as Temporal
from temporalio.service import RPCError

from saga_workers.temporal.temporal_runs import describe_run
from sagas.protocol.payloads import UNDO_SUFFIX

log = logging.getLogger("saga.pause")

_MOST = 10_000
"""Names that are remembered; beyond that they are looked up again."""


class EnclosingSagas:
    """The names of enclosing sagas, each of which is looked up once."""

    def __init__(self, temporal: Temporal) -> None:
        self._temporal = temporal
        self._names: dict[str, str | None] = {}

    async def names(self, saga_id: str) -> set[str]:
        """The names of the sagas in which the saga with this id is nested, at any depth, as far as Temporal answers."""
        names = {await self._name(enclosing) for enclosing in _enclosing_ids(saga_id)}
        return {name for name in names if name is not None}

    async def _name(self, saga_id: str) -> str | None:
        if saga_id in self._names:
            return self._names[saga_id]
        try:
            described = await describe_run(self._temporal, saga_id)
            if described is None:  # its run is deleted, but not that of its undo
                described = await describe_run(self._temporal, saga_id + UNDO_SUFFIX)
        except RPCError as error:
            log.warning("not known whether all sagas of the name of %s are paused: %s", saga_id, error.message)
            return None
        if len(self._names) >= _MOST:
            self._names.clear()
        self._names[saga_id] = name = None if described is None else described.run.workflow_type
        return name


def _enclosing_ids(saga_id: str) -> Iterator[str]:
    """The ids of the enclosing sagas: a nested saga has the id of its parent, a slash and that of the step."""
    enclosing, slash, _ = saga_id.rpartition("/")
    while slash:
        yield enclosing
        enclosing, slash, _ = enclosing.rpartition("/")
