"""The input of a bulk workflow, which any client of Temporal may have sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sagas.bulk.bulk_machine import NewSaga
from sagas.bulk.names import MAX_MEMBERS
from sagas.definition.saga_ids import saga_id_problem
from sagas.protocol.payloads import BULK_WORKFLOW
from sagas.text.json_values import json_problem
from sagas.workflow.failures import refused_error


@dataclass(frozen=True, slots=True)
class BulkRequest:
    """The input of a bulk workflow. ``refused``: why others of its sagas cannot be started, by their ids."""

    saga: str
    sagas: Sequence[NewSaga]
    again: bool
    chunk_size: int
    refused: Mapping[str, str]


def read_request(value: Any) -> BulkRequest:
    """Check an input, which any client may have sent. Raises SagaApplicationError (refused)."""
    try:
        sagas = [NewSaga(id, input, labels) for id, input, labels in value["sagas"]]
        saga, again, chunk_size = value["saga"], bool(value.get("again")), value.get("chunk_size") or MAX_MEMBERS
        ids = {saga.id for saga in sagas}
        fits = isinstance(saga, str) and all(
            isinstance(other.id, str) and isinstance(other.labels, dict) for other in sagas
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise refused_error(f"the input of {BULK_WORKFLOW} is not a list of sagas") from None
    if not fits or not 1 <= len(sagas) <= MAX_MEMBERS or len(ids) != len(sagas):
        raise refused_error(f"the input of {BULK_WORKFLOW} needs 1 to {MAX_MEMBERS} sagas with ids of their own")
    if not isinstance(chunk_size, int) or chunk_size < 1:
        raise refused_error(f"the input of {BULK_WORKFLOW} needs a chunk_size of 1 or more")
    refused = {new.id: problem for new in sagas if (problem := _problem(new)) is not None}
    if len(refused) == len(sagas):
        raise refused_error(next(iter(refused.values())))
    return BulkRequest(
        saga, [new for new in sagas if new.id not in refused], again=again, chunk_size=chunk_size, refused=refused
    )


def _problem(new: NewSaga) -> str | None:
    """Why a saga cannot be started, whatever its definition is; None if it can."""
    if (problem := saga_id_problem(new.id, owner=None)) is not None:
        return problem
    problem = json_problem(new.input) or json_problem(dict(new.labels))
    return None if problem is None else f"the input of {new.id} is refused: {problem}"
