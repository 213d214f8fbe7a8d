"""The verdict of a reconciliation, on the terminal and as a page."""

from __future__ import annotations

from typing import Any

import pytest

from saga_cli.commands.operate.reconcile import _print_report
from saga_cli.render.reconciliation import reconciliation_html


def report(read: dict[str, int]) -> dict[str, Any]:
    shared = {"saga": None, "since": None, "until": "2026-11-26T00:00:00Z", "seconds": 1.0, "findings": []}
    return {**shared, "consistent": True, "counts": {}, "read": read}


@pytest.mark.parametrize(
    ("read", "verdict"),
    [
        ({"sagas": 0, "effects": 0}, "nothing to reconcile: no saga, effect or event was found"),
        ({"sagas": 0, "effects": 1}, "✔ everything reconciles"),
    ],
)
def test_a_reconciliation_that_has_read_nothing_has_not_compared_anything(
    read: dict[str, int], verdict: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _print_report(report(read), None)
    assert verdict in capsys.readouterr().out
    assert verdict.casefold() in reconciliation_html(report(read)).casefold()
