"""The message of a rejection by the audit: the first failed checks in full, with their names."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from saga_cli.render.saga_view import view_lines
from saga_spark.staging.staging_attempt import audit_rejection
from sagas.presentation.styled_text import to_plain
from sagas.protocol.saga_view import ReasonView, SagaView
from tests.helpers.forked_commands import run_command

REPORT = "file:///var/lib/saga/stage/0123456789abcdef0123456789abcdef/g1/audit/report.html"


def failed(number: int, message: str, output: str) -> dict[str, Any]:
    return {"name": f"{number}:rows", "kind": "rows", "output": output, "status": "fail", "message": message,
            "samples": [{"id": 1}]}  # fmt: skip


def test_a_rejection_quotes_the_first_failed_checks_with_their_names() -> None:
    messages = ["expected 3 rows, found 2", "1 null: 1 in rate", "at most 300 as the sum of n, found 301", "x", "y"]
    checks = [failed(number, message, "rates") for number, message in enumerate(messages, 1)]
    message, details = audit_rejection({"checks": checks, "report": {"html": REPORT}})
    assert message == (
        "the audit rejected the output: expected 3 rows, found 2 (1:rows of rates); 1 null: 1 in rate (2:rows of "
        "rates); at most 300 as the sum of n, found 301 (3:rows of rates); and 2 more checks"
    )
    message, _ = audit_rejection({"checks": [failed(1, "expected 1 row, found 2", "output")]})
    assert message == "the audit rejected the output: expected 1 row, found 2 (1:rows)"
    reason = ReasonView(kind="rejected", step="facts", message=message, details=details)
    view = SagaView(id="d", saga="day", state="COMPENSATED", reason=reason)
    shown = "\n".join(map(to_plain, view_lines(view, now=datetime.now(UTC))))
    assert "failed checks: 1:rows, 2:rows, 3:rows, 4:rows, 5:rows" in shown
    assert f"report: {REPORT}" in shown, "to be opened, so whole"


def test_a_check_that_is_given_the_name_of_an_input_says_which_form_it_needs(tmp_path: Path) -> None:
    (tmp_path / "saga.toml").write_text('definitions = ["."]\n')
    (tmp_path / "a.saga.yaml").write_text(
        "saga: a\nsteps:\n  - id: c\n    uses: spark\n    with:\n      sql: select * from g\n"
        "      inputs: {g: {parquet: g}}\n      output: {parquet: t}\n"
        "      audit: [{relationships: {column: x, to: g, field: x}}]\n"
    )
    shown = run_command(["validate"], tmp_path).stdout
    assert "expected a mapping with the source, not the name of an input, such as {connection: shop" in shown
