"""Markdown for the Temporal Web UI: the counts of a batch."""

from __future__ import annotations

from sagas.presentation.web_ui_text import table_row
from sagas.protocol.batch_record import BatchRecord
from sagas.text.markdown import markdown_code, markdown_text
from sagas.text.shell import saga_command


def batch_details(record: BatchRecord) -> str:
    """How many rows are started, and how those sagas have ended, as the command has reported it."""
    lines = [
        f"**{markdown_text(record.saga)}**: {record.processed} of {record.total} rows, {record.state}",
        "",
        "| rows | |",
        "|---|---|",
        table_row(str(record.started), "started"),
        table_row(str(record.there), "already existed"),
        table_row(str(record.refused), "refused"),
    ]
    lines += [table_row(str(count), state) for state, count in sorted(record.ended.items())]
    if record.stopped:
        lines += ["", f"Stopped: {markdown_text(record.stopped)}"]
    command = markdown_code(saga_command("batch", "show", record.id))
    lines += ["", f"{command} counts the sagas themselves. **Terminate** ends only this record."]
    return "\n".join(lines)
