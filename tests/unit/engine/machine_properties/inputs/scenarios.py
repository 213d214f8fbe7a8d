"""Two kinds of scenario: random choices, or exactly one fault at exactly one position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sagas.protocol.messages import Call, UndoSaga
from tests.unit.engine.machine_properties.environment.children import ChildFate, ChildFlight
from tests.unit.engine.machine_properties.environment.environment import CHOICES, Fate
from tests.unit.engine.machine_properties.inputs.choice_sequence import ChoiceSequence

TIMEOUT = 12
"""Decisions after which the operator only retries: then every saga has to end."""


class RandomScenario:
    """Random decisions from two choice sequences: one for faults, one for the order of events."""

    def __init__(self, faults: ChoiceSequence, order: ChoiceSequence) -> None:
        self.faults, self.order = faults, order
        self.percent = faults.pick((10, 30, 60, 0))
        self.faults_left = faults.pick((3, 6, 10, 20))
        self.cancel_percent = order.pick((0, 0, 8, 3))
        self.deadline_percent = order.pick((0, 0, 8, 3))
        self.crash_percent = order.pick((0, 20, 5, 0, 100))
        self.early_percent = order.pick((0, 0, 5))
        self.pause_percent = order.pick((0, 0, 0, 10))
        self.continue_percent = order.pick((0, 0, 10))
        self.disorder = order.pick((50, 90, 10))
        self.decisions = 0

    def fate(self, call: Call, attempt: int) -> Fate:
        if self.faults_left == 0 or not self.faults.chance(self.percent):
            return "ok"
        self.faults_left -= 1
        return self.faults.pick(CHOICES[call.op])

    def child(self, flight: ChildFlight) -> ChildFate:
        if isinstance(flight.command, UndoSaga):
            fates: Sequence[ChildFate] = (
                "completed",
                "completed",
                "parked",
                "completed",
                "residue",
                "terminated",
                "refused",
            )
        elif flight.cancelled:
            fates = ("failed", "completed", "failed", "residue", "parked")
        else:
            fates = (
                "completed", "parked", "rejected", "failed", "residue", "residue_committed", "terminated", "refused",
                "completed",
            )  # fmt: skip
        if self.faults_left == 0:
            return fates[0]
        fate = self.faults.pick(fates)
        self.faults_left -= fate != "completed"
        return fate

    def chance(self, percent: int) -> bool:
        return self.order.chance(percent)

    def next(self, options: Sequence[str]) -> int:
        return self.order.below(len(options)) if len(options) > 1 and self.order.chance(self.disorder) else 0

    def cancel_now(self, events: int) -> bool:
        return self.cancel_percent > 0 and self.order.chance(self.cancel_percent)

    def deadline_now(self, events: int) -> bool:
        return self.deadline_percent > 0 and self.order.chance(self.deadline_percent)

    def crash_now(self) -> bool:
        return self.crash_percent > 0 and self.order.chance(self.crash_percent)

    def continue_now(self) -> bool:
        return self.continue_percent > 0 and self.order.chance(self.continue_percent)

    def preference(self, item: Mapping[str, Any]) -> str:
        self.decisions += 1
        if self.decisions > TIMEOUT:
            return "retry" if item.get("parked", True) else "done"
        return self.order.pick(("retry", "skip", "done", "compensate"))

    def correction(self) -> str:
        return "both" if self.decisions > TIMEOUT else self.order.pick(("none", "with", "definition", "both"))

    def reject(self) -> bool:
        return self.faults.chance(20)

    def early_signal(self) -> bool:
        return self.early_percent > 0 and self.order.chance(self.early_percent)

    def long_pause(self) -> bool:
        return self.pause_percent > 0 and self.order.chance(self.pause_percent)

    def undo_later(self) -> bool:
        return not self.order.chance(30)


@dataclass
class SingleFaultScenario:
    """Everything goes well and in order, except: one kind of attempt, a cancel or the deadline at a given event."""

    step: str | None = None
    op: str = "do"
    fault: Fate = "ok"
    times: int = 1
    cancel_at: int | None = None
    deadline_at: int | None = None
    preferred: str = "retry"
    corrected: str = "none"
    crash: bool = False

    def fate(self, call: Call, attempt: int) -> Fate:
        if call.step == self.step and call.op == self.op and self.times > 0:
            self.times -= 1
            return self.fault
        return "ok"

    def child(self, flight: ChildFlight) -> ChildFate:
        if flight.command.entry == self.step and self.op == "do" and self.fault == "rejected" and self.times > 0:
            self.times -= 1
            return "rejected"
        return "failed" if flight.cancelled else "completed"

    def chance(self, percent: int) -> bool:
        return False

    def next(self, options: Sequence[str]) -> int:
        return 0

    def cancel_now(self, events: int) -> bool:
        if events == self.cancel_at:
            self.cancel_at = None
            return True
        return False

    def deadline_now(self, events: int) -> bool:
        if events == self.deadline_at:
            self.deadline_at = None
            return True
        return False

    def crash_now(self) -> bool:
        return self.crash

    def continue_now(self) -> bool:
        return False

    def preference(self, item: Mapping[str, Any]) -> str:
        preferred, self.preferred = self.preferred, "retry"
        return preferred

    def correction(self) -> str:
        return self.corrected

    def reject(self) -> bool:
        return False

    def early_signal(self) -> bool:
        return False

    def long_pause(self) -> bool:
        return False

    def undo_later(self) -> bool:
        return True
