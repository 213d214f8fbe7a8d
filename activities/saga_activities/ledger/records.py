"""The records of the ledger as values: rows, claims, and the answers about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from sagas.protocol.locks import owner_id
from sagas.protocol.origin import may_equal, start_of
from sagas.protocol.saga_view import SagaView

BATCH_LABEL = "batch"
"""The label that all sagas of one batch have; its value is the batch's id."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The row of one saga.

    ``input_digest``: see :func:`input_digest`. ``labels`` None keeps those of an existing row. ``updated_at``: when the
    saga was in this state. ``story``: its view as JSON text. ``machine``: its compressed snapshot, if it can be undone.
    ``root_start``: that of the origin of a nested saga. ``bulk_id``: the bulk workflow in which it has ended.
    """

    saga_id: str
    started_at: datetime
    saga: str
    generation: int
    digest: str | None
    input_digest: str | None
    state: str
    labels: Mapping[str, str] | None
    ended_at: datetime | None
    ran_until: datetime | None
    updated_at: datetime
    story: str
    machine: bytes | None = None
    root_start: str | None = None
    bulk_id: str | None = None

    @property
    def key(self) -> tuple[str, datetime]:
        return self.saga_id, self.started_at

    @property
    def size(self) -> int:
        """The approximate size in a statement: characters of ``story`` and bytes of ``machine``."""
        return len(self.story) + len(self.machine or b"")


@dataclass(frozen=True, slots=True)
class RunRow:
    """A row as it was read. ``view``: as far as it holds without the run. ``input_digest`` may be None.

    ``root_start``: that of the origin of a nested saga; empty if it is not known.
    """

    view: SagaView
    input_digest: str | None
    started_at: datetime
    updated_at: datetime
    root_start: str = ""

    @property
    def start_of_root(self) -> str:
        """The :func:`sagas.protocol.origin.start_of` the root saga, which is this one unless it is nested."""
        if self.root_start or owner_id(self.view.id) != self.view.id:
            return self.root_start
        return start_of(self.view.saga, self.input_digest or "")


@dataclass(frozen=True, slots=True)
class RunFilter:
    """The rows to list; all conditions must hold. ``before``: only rows that come after this one in the list."""

    saga: str | None = None
    states: tuple[str, ...] = ()
    since: datetime | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    before: tuple[datetime, str] | None = None
    id_prefix: str = ""


@dataclass(frozen=True, slots=True)
class OutcomeCount:
    """Sagas of one name that have ended in one state. ``seconds``: the sum of their durations."""

    saga: str
    state: str
    count: int
    seconds: float
    longest: float


@dataclass(frozen=True, slots=True)
class NewClaim:
    """An id to claim. ``input_digest``: see :func:`sagas.protocol.payloads.input_digest`."""

    saga_id: str
    input_digest: str
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim as it was read. ``bulk_id`` is None for a saga that was started on its own, or has left its bulk
    workflow; only then it has a ``run_id``: that of the run that has taken the claim, empty before that.
    """

    saga_id: str
    bulk_id: str | None
    saga: str
    input_digest: str
    claimed_at: datetime
    labels: Mapping[str, str]
    run_id: str | None = None

    @property
    def is_single_start(self) -> bool:
        """True for the claim of a saga that was started on its own."""
        return self.bulk_id is None and self.run_id is None

    def may_be_of(self, record: RunRecord) -> bool:
        """Return whether the saga of this record may have made the claim: it has the same name and the same input."""
        return self.saga == record.saga and may_equal(self.input_digest, record.input_digest)


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """The newest row of a saga that has ended, or is parked. ``generation`` is the highest of its entries."""

    saga_id: str
    saga: str
    state: str
    input_digest: str | None
    generation: int


@dataclass(slots=True)
class ClaimResult:
    """The ids that are not new: ``ended`` ones have a row, ``taken`` ones a claim of another bulk workflow.

    The others are claimed; ``earlier``: what is known of them from before, with ``again``.
    """

    earlier: dict[str, EarlierRun] = field(default_factory=dict)
    ended: dict[str, EarlierRun] = field(default_factory=dict)
    taken: dict[str, Claim] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SingleClaim:
    """``made_at``: when this call has made the claim; else ``held`` is the one that exists. ``row``: the newest of the
    id.
    """

    made_at: datetime | None
    held: Claim | None
    row: RunRow | None


@dataclass(frozen=True, slots=True)
class KnownSaga:
    """An id that exists. ``bulk_id``: the bulk workflow that runs it now; None if it has ended or runs on its own.

    ``alone``: it is claimed for a workflow of its own, and only Temporal knows whether that was started.
    """

    saga: str
    state: str
    input_digest: str | None
    bulk_id: str | None = None
    alone: bool = False
