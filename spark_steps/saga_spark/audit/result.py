"""What came out of one check, and of all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from saga_spark.job import Check

Status = Literal["pass", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """``message`` is one sentence, ``details`` the numbers behind it, ``samples`` some of the rows that break it."""

    check: Check
    broken: bool
    message: str
    details: Mapping[str, Any] = field(default_factory=dict)
    samples: Sequence[Mapping[str, Any]] = ()

    @property
    def status(self) -> Status:
        if not self.broken:
            return "pass"
        return "warn" if self.check.severity == "warn" else "fail"

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.check.name,
            "kind": self.check.kind,
            "output": self.check.output,
            "severity": self.check.severity,
            "status": self.status,
            "message": self.message,
            "details": dict(self.details),
            "samples": [dict(one) for one in self.samples],
        }


def verdict(results: Sequence[CheckResult]) -> Status:
    """The worst of all."""
    statuses = {one.status for one in results}
    return "fail" if "fail" in statuses else ("warn" if "warn" in statuses else "pass")
