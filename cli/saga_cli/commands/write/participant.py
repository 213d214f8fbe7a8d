"""`saga participant`: check a service that sagas call, or serve a reference participant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saga_cli.context import GLOBAL_OPTIONS_HELP, load_settings
from saga_cli.exit_codes import DIFFERENCES
from saga_cli.output import echo, make_console, print_list, warn
from saga_cli.shared_options import json_object, json_option, parse_duration_option
from sagas.errors import UsageError

if TYPE_CHECKING:
    from saga_workers.participant.participant_test import StepUnderTest
    from sagas.settings import Settings

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    epilog=GLOBAL_OPTIONS_HELP,
    help="Check a service that sagas call over HTTP or Kafka, or serve a reference participant.",
    context_settings={"help_option_names": ["--help", "-h"]},
)


@app.command("test")
def run_checks(
    saga: Annotated[str | None, typer.Argument(help="a saga of the project, whose step calls the service")] = None,
    step: Annotated[str | None, typer.Argument(help="the step: its uses, compensate and confirm are called")] = None,
    do: Annotated[str | None, typer.Option(metavar="'METHOD URL'", help="without a saga: the forward request")] = None,
    undo: Annotated[str | None, typer.Option(metavar="'METHOD URL'", help="the request that undoes it")] = None,
    confirm: Annotated[str | None, typer.Option(metavar="'METHOD URL'", help="the request that confirms it")] = None,
    connection: Annotated[
        str | None, typer.Option(metavar="NAME", help="a connection of kind http in saga.toml; URLs may be paths of it")
    ] = None,
    topic: Annotated[
        str | None, typer.Option(help="without a saga: the topic of commands, for a participant on Kafka")
    ] = None,
    reply_topic: Annotated[str | None, typer.Option("--reply-topic", help="the topic of replies")] = None,
    data: Annotated[
        str | None, typer.Option(metavar="JSON", help="the body or the value of the forward request; @file too")
    ] = None,
    undo_data: Annotated[
        str | None, typer.Option("--undo-data", metavar="JSON", help="the body of the undo; default: that of --data")
    ] = None,
    confirm_data: Annotated[
        str | None,
        typer.Option("--confirm-data", metavar="JSON", help="the body of the confirm; default: that of --data"),
    ] = None,
    other_data: Annotated[
        str | None,
        typer.Option("--other-data", metavar="JSON", help="other arguments; default: --data with one value changed"),
    ] = None,
    input: Annotated[str | None, typer.Option(help="the saga's input, JSON, @file or -; default: a sample")] = None,
    other_input: Annotated[
        str | None, typer.Option("--other-input", help="an input that gives the step other arguments")
    ] = None,
    rejected_data: Annotated[
        str | None, typer.Option("--rejected-data", metavar="JSON", help="arguments that the participant rejects")
    ] = None,
    rejected_input: Annotated[
        str | None, typer.Option("--rejected-input", help="an input with which the participant rejects the step")
    ] = None,
    results: Annotated[
        str | None, typer.Option(metavar="JSON", help="results of other steps by id; default: samples")
    ] = None,
    count: Annotated[
        str | None, typer.Option(metavar="URL", help="a URL that returns the number of effects; {key} in it is the key")
    ] = None,
    count_result: Annotated[
        str, typer.Option("--count-result", metavar="EXPRESSION", help="the number in the response of --count")
    ] = "response.json",
    timeout: Annotated[str, typer.Option(help="the time for one response")] = "30s",
) -> int:
    """Check what a participant promises about keys: duplicates, undo before do, rejections, lost responses.

    The service is really called, and what the test does is undone where there is an undo, except what it has
    confirmed. Exit code 8 if a promise is not kept; the settings that fit the service follow.
    """
    import asyncio

    from saga_workers.participant.participant_test import http_step, kafka_step, run_participant_test

    settings = load_settings()
    seconds = parse_duration_option(timeout, "--timeout").total_seconds()
    bodies = {
        name: json_option(text, f"--{name}")
        for name, text in (("data", data), ("undo-data", undo_data), ("confirm-data", confirm_data))
        if text is not None
    }
    if sum(given is not None for given in (saga, do, topic)) != 1:
        raise UsageError(
            "give a saga and its step, or --do 'METHOD URL', or --topic TOPIC", help="saga participant test --help"
        )
    counted = None if count is None else {"url": count, "result": count_result}
    if saga is not None:
        _refuse(
            "a saga",
            {
                "--data": data,
                "--undo": undo,
                "--confirm": confirm,
                "--undo-data": undo_data,
                "--confirm-data": confirm_data,
                "--other-data": other_data,
                "--rejected-data": rejected_data,
                "--connection": connection,
                "--reply-topic": reply_topic,
            },
        )
        tested = _step_of_saga(settings, saga, step, input, other_input, rejected_input, results, counted)
    else:
        _refuse(
            "--do or --topic",
            {"--input": input, "--other-input": other_input, "--rejected-input": rejected_input, "--results": results},
        )
        if topic is None:
            _refuse("--do", {"--reply-topic": reply_topic})
        else:
            _refuse("--topic", {"--undo": undo, "--confirm": confirm, "--connection": connection})
        other, rejected = json_option(other_data, "--other-data"), json_option(rejected_data, "--rejected-data")

        def described(body: Any) -> Any:
            given = {**bodies, **({} if body is None else {"data": body})}
            if topic is not None:
                return kafka_step(settings, topic, reply_topic, given, counted)
            return http_step(settings, do or "", undo, confirm, connection, given, counted)

        from dataclasses import replace

        tested = replace(
            described(None),
            other=None if other is None else described(other),
            rejected=None if rejected is None else described(rejected),
        )
    target = do or topic or f"{saga} {step}"
    warn(f"testing {target} with real requests; their keys begin with participant-test-")
    checked = asyncio.run(run_participant_test(settings, tested, timeout=seconds))
    print_list(
        [result.to_json() for result in checked], human=lambda rows: _print_results(rows, counted=count is not None)
    )
    return DIFFERENCES if any(result.verdict == "failed" for result in checked) else 0


@app.command()
def serve(
    address: Annotated[str, typer.Option(help="HOST:PORT to listen on")] = "127.0.0.1:8099",
    database: Annotated[str, typer.Option(metavar="FILE", help="a SQLite file; default: in memory")] = ":memory:",
    log_format: Annotated[str, typer.Option("--log-format", help="text, or json: one object per line")] = "text",
) -> int:
    """Serve a reference participant in the foreground: POST /reserve, /release and /confirm, GET /reservations."""
    import asyncio

    from saga_cli.shared_options import start_logging
    from saga_workers.participant.reference_participant import serve_reference_participant

    start_logging(log_format)
    asyncio.run(serve_reference_participant(address, database, ready=echo))
    return 0


def _refuse(target: str, options: dict[str, str | None]) -> None:
    for name, value in options.items():
        if value is not None:
            raise UsageError(f"{name} cannot be combined with {target}", help="saga participant test --help")


def _step_of_saga(
    settings: Settings,
    saga: str,
    step: str | None,
    input: str | None,
    other_input: str | None,
    rejected_input: str | None,
    results: str | None,
    count: dict[str, Any] | None,
) -> StepUnderTest:
    from saga_cli.commands.write.simulate import read_or_sample_input
    from saga_cli.inputs import read_input
    from saga_workers.participant.participant_test import StepUnderTest
    from sagas.project import Project
    from sagas.simulation import environment_of

    project = Project(settings)
    definition = project.definition(saga)
    if step is None:
        raise UsageError(f"give the step of {saga}: {', '.join(step.id for step in definition.steps)}")
    outside = environment_of(project)
    given, made_up = read_or_sample_input(definition, input, outside)
    expected = json_object(results, "--results") or {}
    other, rejected = (
        None if text is None else StepUnderTest(definition, step, read_input(text, []), expected, environment=outside)
        for text in (other_input, rejected_input)
    )
    return StepUnderTest(definition, step, given, expected, other, rejected, count, outside, made_up)


_MARKS = {"passed": ("✔", "green"), "failed": ("✖", "bold red"), "skipped": ("·", "dim")}


def _print_results(rows: Sequence[dict[str, Any]], *, counted: bool) -> None:
    from rich.table import Table
    from rich.text import Text

    out = make_console()
    table = Table(box=None, padding=(0, 2, 1, 0), header_style="dim", show_edge=False, pad_edge=False)
    for heading in ("", "check", "promised", "observed"):
        table.add_column(heading, no_wrap=heading == "", overflow="fold")
    for row in rows:
        mark, style = _MARKS[row["verdict"]]
        seen = [f"{step['sent']} → {step['seen']}" for step in row["steps"]]
        cell = Text("\n".join(seen))
        if row["problem"] is not None:
            cell.append(f"{chr(10) if seen else ''}{row['problem']}", style)
        table.add_row(Text(mark, style=style), Text(row["check"]), Text(row["promise"]), cell)
    out.print(table)
    totals = {name: sum(row["verdict"] == name for row in rows) for name in _MARKS}
    out.print(Text(", ".join(f"{number} {name}" for name, number in totals.items() if number)))
    if proposals := list(dict.fromkeys(row["proposal"] for row in rows if row["proposal"] is not None)):
        out.print(Text("what fits this participant, at the step or its connection:"))
        for proposal in proposals:
            out.print(Text(f"  {proposal}"))
    if not counted:
        out.print(Text("without --count, a second effect shows only if its response differs", style="dim"))
