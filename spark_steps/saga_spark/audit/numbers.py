"""Judges the checks whose numbers the write pass has counted. Pure: no Spark."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from saga_spark.audit.counting import count_name, parts
from saga_spark.audit.result import CheckResult
from saga_spark.job import Check
from saga_spark.manifest import Manifest
from sagas.errors import UsageError


def judge(check: Check, manifest: Manifest, previous_rows: int | None) -> CheckResult:
    """``previous_rows`` is the row count of the last publication of this output; None: there was none."""
    match check.kind:
        case "rows":
            return _rows(check, manifest, previous_rows)
        case "sum":
            return _sum(check, manifest)
    broken = {part: int(manifest.counts.get(count_name(check, part)) or 0) for part in parts(check)}
    total = sum(broken.values())
    if check.kind == "not_null":
        where = ", ".join(f"{count} in {name}" for name, count in broken.items() if count)
        message = f"no null in {', '.join(broken)}" if not total else f"{total} nulls: {where}"
    elif check.kind == "accepted_values":
        column = check.spec["column"]
        message = f"{column} has accepted values only" if not total else f"{total} rows with another value in {column}"
    else:
        message = f"{check.spec} holds" if not total else f"{total} rows break {check.spec}"
    return CheckResult(check, total > 0, message, {"rows": total, **({} if "" in broken else {"columns": broken})})


def _rows(check: Check, manifest: Manifest, previous: int | None) -> CheckResult:
    rows = manifest.rows if check.where is None else int(manifest.counts[count_name(check)] or 0)
    spec = check.spec
    details: dict[str, Any] = {"rows": rows}
    problems = _limits(check, Decimal(rows), "rows", details)
    if "change" in spec and previous is not None:
        allowed = Decimal(str(spec["change"]).rstrip("%"))
        change = abs(Decimal(rows) - previous) * 100 / previous if previous else Decimal(0 if rows == 0 else 100)
        details |= {"previous": previous, "change": f"{change:.1f}%"}
        if change > allowed:
            problems.append(
                f"{rows} rows after {previous} the last time, a change of {change:.1f}% (allowed {allowed}%)"
            )
    return CheckResult(check, bool(problems), "; ".join(problems) or f"{rows} rows", details)


def _sum(check: Check, manifest: Manifest) -> CheckResult:
    column = check.spec["column"]
    found = Decimal(manifest.counts.get(count_name(check)) or 0)
    details: dict[str, Any] = {"sum": format(found, "f")}
    if not found.is_finite():
        return CheckResult(check, True, f"the sum of {column} is no number: it has rows with NaN or infinity", details)
    problems = _limits(check, found, f"as the sum of {column}", details)
    return CheckResult(check, bool(problems), "; ".join(problems) or f"the sum of {column} is {found:f}", details)


def _limits(check: Check, found: Decimal, what: str, details: dict[str, Any]) -> list[str]:
    tolerance = _number(check, "tolerance") or Decimal(0)
    problems = []
    for name, words, breaks in (
        ("equals", "expected", lambda limit: abs(found - limit) > tolerance),
        ("min", "at least", lambda limit: found < limit),
        ("max", "at most", lambda limit: found > limit),
    ):
        limit = _number(check, name)
        if limit is not None:
            details[name] = format(limit, "f")
            if breaks(limit):
                problems.append(f"{words} {limit:f} {what}, found {found:f}")
    return problems


def _number(check: Check, name: str) -> Decimal | None:
    """A limit; results of steps bring decimals as texts."""
    if name not in check.spec:
        return None
    value: Mapping[str, Any] | Any = check.spec[name]
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        number = Decimal("NaN")
    if isinstance(value, bool) or not number.is_finite():
        raise UsageError(f"the check {check.name}: `{name}` must be a number, not {value!r}")
    return number
