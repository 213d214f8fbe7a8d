"""What is wrong or doubtful about a saga whose fields could be read. One file per subject."""

from __future__ import annotations

from sagas.definition.diagnostics import Report
from sagas.definition.draft import Draft


def check_draft(draft: Draft, report: Report) -> None:
    """Run every check; the findings go to ``report``."""
