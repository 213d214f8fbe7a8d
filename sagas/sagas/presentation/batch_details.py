"""Markdown for the Temporal Web UI: the counts of a batch, and those of a bulk workflow."""

from __future__ import annotations

from collections.abc import Sequence

from sagas.bulk.bulk_machine import BulkMachine
from sagas.presentation.web_ui_text import table_row
from sagas.protocol.batch_record import BatchRecord
from sagas.text.markdown import markdown_code, markdown_text
from sagas.text.shell import saga_command
from sagas.text.shortening import and_more, counted

SHOWN = 10


def batch_details(record: BatchRecord) -> str:
    """The number of rows that are started, and how those sagas have ended, as the command has reported it."""
    lines = [
        f"**{markdown_text(record.saga)}**: {record.processed} of {record.total} rows, {record.state}",
        "",
        "| rows | |",
        "|---|---|",
        table_row(str(record.started), "started"),
        table_row(str(record.existing), "already existed"),
        table_row(str(record.refused), "refused"),
    ]
    lines += [table_row(str(count), state) for state, count in sorted(record.ended.items())]
    if record.stopped:
        lines += ["", f"Stopped: {markdown_text(record.stopped)}"]
    command = markdown_code(saga_command("batch", "show", record.id))
    lines += ["", f"{command} counts the sagas themselves. **Terminate** ends only this record."]
    return "\n".join(lines)


def bulk_details(bulk: BulkMachine, detached: Sequence[str]) -> str:
    """Counts by state, the first sagas that were undone, and those that have a workflow of their own."""
    lines = [f"**{markdown_text(bulk.definition.saga)}**: {counted(len(bulk.members), 'saga')} in one workflow", ""]
    lines += ["| sagas | state |", "|---|---|"]
    lines += [table_row(str(count), state) for state, count in sorted(bulk.counts().items())]
    undone = [member for member in bulk.members.values() if member.finish and member.state != "COMPLETED"]
    if undone:
        lines += ["", "Undone:", ""]
        for member in undone[:SHOWN]:
            reason = (member.finish.reason if member.finish else None) or {}
            lines.append(
                f"- {markdown_code(member.id)} {member.state}: {markdown_text(str(reason.get('message', '')))}"
            )
        lines += [f"- …{and_more(len(undone) - SHOWN)}"] if len(undone) > SHOWN else []
    if detached:
        lines += ["", "With a workflow of their own:", ""]
        for id in detached[:SHOWN]:
            why = bulk.members[id].why_leaving or ""
            lines.append(f"- {markdown_code(id)}: {markdown_text(why)}")
        lines += [f"- …{and_more(len(detached) - SHOWN)}"] if len(detached) > SHOWN else []
    lines += ["", "**Terminate** runs nothing: what was done stays, and nothing is undone."]
    return "\n".join(lines)
