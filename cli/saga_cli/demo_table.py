"""Tables, money and check marks of the demo's summaries."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING

from saga_cli.output import say

if TYPE_CHECKING:
    from saga_workers.demo.books import Finding


def money(amount: Decimal) -> str:
    """With two digits after the point."""
    return f"{amount:,.2f}"


def say_table(rows: Sequence[Sequence[str]]) -> None:
    """Numbers flush right, the first column flush left."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for name, *numbers in rows:
        cells = [number.rjust(width) for number, width in zip(numbers, widths[1:], strict=True)]
        say("  ".join([name.ljust(widths[0]), *cells]))


def print_findings(findings: Sequence[Finding]) -> None:
    """One line for each check; what contradicts its rule is named."""
    for finding in findings:
        mark = "✖" if finding.count else "✔"
        extra = f": not so for {finding.count}, such as {', '.join(finding.wrong)}" if finding.count else ""
        say(f"  {mark} {finding.check.subject:<8} {finding.check.rule}{extra}")
