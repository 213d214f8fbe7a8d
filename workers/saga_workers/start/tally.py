"""Counts of the rows of a batch, updated while they are started."""

from __future__ import annotations

from dataclasses import dataclass, field

from saga_workers.start.start_gate import StopReason


@dataclass(slots=True)
class Tally:
    """Counts of rows, updated as the sagas start and end.

    ``ended`` counts by state, also sagas of earlier starts: a second run over the same file gives the same counts.
    """

    total: int
    started: int = 0
    existing: int = 0
    refused: int = 0
    ended: dict[str, int] = field(default_factory=dict)
    troubles: list[str] = field(default_factory=list)
    stopped: StopReason | None = None

    @property
    def processed(self) -> int:
        return self.started + self.existing + self.refused

    @property
    def running(self) -> int:
        """Sagas that were started or found and whose end is not counted yet."""
        return self.started + self.existing - sum(self.ended.values())

    @property
    def not_started(self) -> int:
        return self.total - self.processed

    def count_ended(self, state: str, count: int = 1) -> None:
        self.ended[state] = self.ended.get(state, 0) + count

    @property
    def failures(self) -> int:
        return self.refused + sum(count for state, count in self.ended.items() if state not in ("COMPLETED", "PARKED"))
