"""The verdict of a reconciliation, on the terminal and as a page."""

from __future__ import annotations

from typing import Any

import pytest

from saga_cli.commands.operate.reconcile import _print_report
from saga_cli.render.reconciliation import reconciliation_html


def report(read: dict[str, int]) -> dict[str, Any]:
    shared = {
        "saga": None,
        "since": None,
        "until": "2026-11-26T00:00:00Z",
        "seconds": 1.0,
        "findings": [],
        "decided": [],
    }
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


def test_a_publication_closed_by_a_decision_is_listed_and_is_no_difference(capsys: pytest.CaptureFixture[str]) -> None:
    decided = {
        "saga_id": "day-7",
        "saga": "day",
        "step": "facts",
        "generation": 1,
        "output": "rates",
        "place": "bank:rates",
        "state": "CLOSED",
        "who": "kim",
        "at": "2026-03-01T10:00:00.000Z",
        "reason": "restored by hand",
        "evidence": "ticket 7",
    }
    closed = {**report({"sagas": 1}), "decided": [decided]}
    _print_report(closed, None)
    shown = capsys.readouterr().out
    assert "✔ everything reconciles" in shown
    assert "1 publication closed by the decision of an operator" in shown
    for text in (shown, reconciliation_html(closed)):
        assert "CLOSED 2026-03-01T10:00:00.000Z kim: done, because restored by hand; evidence: ticket 7" in text
