"""`saga relay`: publish the events of the outboxes, or show their status."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from saga_cli.context import load_settings
from saga_cli.exit_codes import DONE, FAILED
from saga_cli.output import age_text, echo, print_document, print_table
from saga_cli.own_identity import own_identity
from saga_cli.shared_options import Operator, operator_name, parse_duration_option, required_reason, start_logging
from sagas.text.shell import saga_command

if TYPE_CHECKING:
    from sagas.settings import Settings


def relay(
    connection: Annotated[str | None, typer.Option(help="only the outbox of this connection")] = None,
    once: Annotated[bool, typer.Option("--once", help="publish what is new and exit")] = False,
    status: Annotated[
        bool, typer.Option("--status", help="show the owners of the shards and the waiting events; publish nothing")
    ] = False,
    health: Annotated[str | None, typer.Option(help="HOST:PORT of /livez, /readyz and /metrics")] = None,
    grace: Annotated[str, typer.Option(help="time for the transactions in flight to complete after SIGTERM")] = "30s",
    log_format: Annotated[str, typer.Option("--log-format", help="text, or json: one object per line")] = "text",
    release: Annotated[str | None, typer.Option(metavar="EVENT", help="publish this held or refused event")] = None,
    drop: Annotated[str | None, typer.Option(metavar="EVENT", help="never publish this held or refused event")] = None,
    reason: Annotated[str | None, typer.Option(help="reason of --release or --drop; recorded with the event")] = None,
    as_: Operator = None,
) -> int:
    """Publish the events of the outboxes to Kafka, each exactly once and in order per key.

    --release EVENT and --drop EVENT decide about events that need an operator (see --status).
    """
    from saga_cli.command_loop import run_command
    from saga_workers.relay.relay_process import run_relay
    from sagas.errors import UsageError

    if status and (once or health is not None):
        raise UsageError("--status can only be combined with --connection")
    if (release, drop) != (None, None):
        if status or once or health is not None or None not in (release, drop):
            raise UsageError(
                "give either --release or --drop, with no other options than --reason, --as and --connection"
            )
        return _decide(load_settings(), connection, release, drop, reason, as_)
    settings = load_settings()
    if status:
        return _status(settings, connection)
    start_logging(log_format)
    running = run_relay(
        settings, connection=connection, once=once, health=health, grace=parse_duration_option(grace, "--grace")
    )
    run_command(running)
    return 0


def _status(settings: Settings, connection: str | None) -> int:
    from saga_cli.command_loop import run_command
    from saga_workers.relay.relay_status import relay_status

    status = run_command(relay_status(settings, connection))
    print_document(status, human=lambda: _print_status(status))
    return FAILED if any("error" in outbox or "kafka_error" in outbox for outbox in status["outboxes"]) else DONE


def _decide(
    settings: Settings,
    connection: str | None,
    release: str | None,
    drop: str | None,
    reason: str | None,
    as_: str | None,
) -> int:
    from saga_cli.command_loop import run_command
    from saga_workers.relay.event_decisions import decide_in_any_outbox

    why = required_reason(reason, "it is recorded with the event")
    by = operator_name(as_) or own_identity()
    event, decision = (release, "release") if release is not None else (drop, "drop")
    message = run_command(decide_in_any_outbox(settings, connection, str(event), decision, reason=why, who=by))
    print_document({"event": event, "decision": decision, "message": message}, human=lambda: echo(message))
    return 0


def _print_status(status: dict[str, Any]) -> None:
    if not status["outboxes"]:
        echo("no connection of the project has an outbox; create it with `saga setup`")
    for outbox in status["outboxes"]:
        if "error" in outbox:
            echo(f"{outbox['connection']}: {outbox['error']}")
            continue
        oldest = f" (the oldest {age_text(outbox['oldest_seconds'])})" if outbox["new"] else ""
        echo(f"{outbox['connection']}: {outbox['new']} new{oldest}, {outbox['held']} held, {outbox['refused']} refused")
        rows = [
            (
                shard["shard"],
                shard["new"],
                age_text(shard["oldest_seconds"]) if shard["new"] else "-",
                {True: "open", False: "-", None: "?"}[shard.get("open_transaction")],
                shard["owner"] or "-",
            )
            for shard in outbox["shards"]
        ]
        print_table(rows, ("SHARD", "NEW", "OLDEST", "TRANSACTION", "OWNER"), indent=2)
        for topic in outbox.get("topics", ()):
            if "error" in topic:
                echo(f"  topic {topic['topic']}: {topic['error']}")
            elif topic["lso_lag"]:
                echo(f"  topic {topic['topic']}: open transactions hold back {topic['lso_lag']} offsets")
        for event in outbox["needs_operator"]:
            echo(f"  {event['status']} event {event['event']} of {event['saga']}/{event['step']} for {event['topic']}")
            echo(f"    {event['why']}")
            echo(f"    {saga_command('relay', release=event['event'], reason='…')}    (or --drop)")
        for error in ("kafka_error", "publishing_error"):
            if error in outbox:
                echo(f"  {outbox[error]}")
