"""The search for sagas in the address of a page: by id, name, state, label, and time of the start."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from starlette.datastructures import QueryParams

from saga_workers.serve.request_body import BadRequest
from saga_workers.views.saga_list import SagaFilter

PERIODS: Mapping[str, timedelta] = {
    "1h": timedelta(hours=1),
    "24h": timedelta(hours=24),
    "7d": timedelta(days=7),
    "30d": timedelta(days=30),
}

NAMES = ("q", "saga", "state", "since", "label")


def asked_in(query: QueryParams | Mapping[str, str]) -> dict[str, str]:
    """The search, by the names of its fields."""
    return {name: query.get(name, "").strip() for name in NAMES}


def criteria_of(asked: Mapping[str, str], task_queue: str) -> SagaFilter:
    """The filter of a search. Raises BadRequest for a period that is none."""
    since = PERIODS.get(asked["since"])
    if asked["since"] and since is None:
        raise BadRequest(400, f"the period must be one of {', '.join(PERIODS)}")
    name, _, value = asked["label"].partition("=")
    return SagaFilter(
        saga=asked["saga"] or None,
        states=(asked["state"],) if asked["state"] else (),
        since=None if since is None else datetime.now(UTC) - since,
        labels={name: value} if name else {},
        id_prefix=asked["q"],
        task_queue=None if asked["saga"] else task_queue,  # as `saga list --saga`
    )
