"""The entry point: finds the command, runs it, and turns the result into a message and an exit code."""

from __future__ import annotations

import gc
import importlib
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from saga_cli.context import GLOBAL_OPTIONS_HELP, global_options, set_global_options, split_options
from saga_cli.exit_codes import FAILED, INTERRUPTED, USAGE
from saga_cli.library_messages import shorten_library_messages
from saga_cli.output import guard_streams, warn
from sagas.errors import SagaError, UsageError


def main(only: CommandEntry | None = None) -> NoReturn:
    """Run the command line of this process and end the process; ``only`` as in :func:`run`."""
    if sys.argv[1:2] != ["worker"]:
        # A command is short-lived, and most of its time is imports: collecting garbage among them finds none.
        gc.set_threshold(100_000)
    guard_streams()
    shorten_library_messages()
    try:
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)  # in place of that of `saga_cli.__main__`
        code = run(sys.argv[1:], only)
    except KeyboardInterrupt:
        code = INTERRUPTED
    # The Temporal client's native threads can crash an interpreter that shuts down normally, after all the
    # work is done; the exit code and buffered output would be lost (temporalio/sdk-python#300).
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:
        code = code or 1
    os._exit(code)


def run(words: Sequence[str], only: CommandEntry | None = None) -> int:
    """Run one command line and return its exit code; ``only``: the line has the options of this command alone."""
    # The options of this line are not those of the next one of the process.
    return copy_context().run(_run, words, only)


def _run(words: Sequence[str], only: CommandEntry | None) -> int:
    try:
        if sys.version_info < (3, 11):  # noqa: UP036 - a checkout can be run by any Python
            raise UsageError(f"saga needs Python 3.11 or newer; this is {sys.version.split()[0]}")
        options, remaining_words = split_options(words)
        set_global_options(options)
        return _dispatch(remaining_words) if only is None else run_command(only, remaining_words)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (`head`, a pager) has seen enough. What is still buffered must not fail at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except Exception as error:  # noqa: BLE001 - every error becomes a message here
        return _print_error("--debug" in words, error)


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("--help", "-h", "help"):
        if len(words) > 1 and words[0] == "help":
            return _dispatch([words[1], "--help"])
        print(_help_text())
        return 0
    if words[0] in ("--version", "version"):
        from importlib.metadata import version

        print(version("saga-orchestrator"))
        return 0
    command = find_command(words[0])
    if command is None:
        from sagas.errors import did_you_mean

        raise UsageError(f"there is no command {words[0]}{did_you_mean(words[0], command_names())}", help="saga --help")
    return run_command(command, words[1:])


def run_command(command: CommandEntry, words: list[str]) -> int:
    """Parse the options of one command and run it."""
    import typer
    from typer.main import get_command

    from saga_cli.command_parser import OnceCommand

    module, _, attribute = command.target.partition(":")
    target: typer.Typer | Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    if not isinstance(target, typer.Typer):
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command(command.name, epilog=GLOBAL_OPTIONS_HELP, context_settings={"help_option_names": ["--help", "-h"]})(
            target
        )
        target = app
    for each in target.registered_commands:
        each.cls = OnceCommand
    result = get_command(target).main(args=words, prog_name=f"saga {command.name}", standalone_mode=False)
    return result if isinstance(result, int) else 0


def _print_error(debug: bool, error: Exception) -> int:
    """Print an error as one message, without credentials that it quotes; returns the exit code."""
    from sagas.settings.masking import mask

    if debug or global_options().debug:
        import traceback

        print(mask("".join(traceback.format_exception(error))), end="", file=sys.stderr)
    more: Sequence[str] = ()
    if type(error).__name__ == "NoArgsIsHelpError":
        print(getattr(error, "message", ""))
        return USAGE
    if isinstance(error, SagaError):
        message, help, code, more = error.message, error.help, error.exit_code, error.more
    elif (wording := getattr(error, "format_message", None)) is not None:
        # What typer raises for a wrong command line; its classes are not public.
        message, help, code = _typer_message(wording()), _usage_help(error), getattr(error, "exit_code", USAGE)
    elif type(error).__name__ == "Abort":
        return INTERRUPTED
    elif type(error).__module__.startswith("temporalio.") and type(error).__name__ == "RPCError":
        message = f"the Temporal server refused the request: {str(error).splitlines()[0]}"
        help, code = "`saga doctor` checks its address, namespace and credentials: [temporal] in saga.toml", FAILED
    else:
        what = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        message, help, code = (
            f"internal error, a bug in saga: {what}",
            "run it again with --debug to see the traceback",
            FAILED,
        )
    warn(f"error: {mask(message)}", *(mask(line) for line in more))
    if help:
        warn(f"help: {mask(help)}")
    return code


def _typer_message(message: str) -> str:
    """A message of typer in the form of our own: lower case, no full stop, and "did you mean" for its options."""
    if (match := re.search(r"(\S+?)\.? \(Possible options: ([^)]*)\)", message)) is not None:
        from sagas.errors import nearest

        # They are in alphabetical order, and resemble it by their hyphens alone.
        options = {option.lstrip("-"): option for option in match[2].split(", ")}
        near = nearest(match[1].lstrip("-"), options)
        message = message[: match.end(1)] + (f"; did you mean {options[near]}?" if near else "")
    message = message.rstrip(".")
    return message[:1].lower() + message[1:]


def _usage_help(error: Exception) -> str | None:
    context = getattr(error, "ctx", None)
    return f"{context.command_path} --help" if context is not None else None


def _help_text() -> str:
    lines = ["Run sagas that are defined in YAML on Temporal: each completes or is compensated.", "", "saga COMMAND …"]
    group = ""
    for command in COMMANDS:
        if command.group != group:
            group = command.group
            lines += ["", group]
        lines.append(f"  {command.name:<11} {command.help}")
    lines += ["", f"saga COMMAND --help shows the options. {GLOBAL_OPTIONS_HELP}"]
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """``target`` is ``module:attribute``; the attribute is a function, or a ``typer.Typer`` with sub-commands."""

    name: str
    target: str
    help: str
    group: str


CHECKOUT_DEMO = Path(__file__).parents[2] / "definitions" / "retail" / "demo"
"""The program of the demo in a clone of this project; an installed wheel has none."""

_BEGIN = "Begin"
_WRITE = "Write sagas"
_RUN = "Run and observe"
_DECIDE = "Intervene"
_OPERATE = "Operate"

COMMANDS: tuple[CommandEntry, ...] = (
    CommandEntry("init", "saga_cli.commands.begin.init:init", "create a new project", _BEGIN),
    CommandEntry(
        "dev", "saga_cli.commands.begin.dev:app", "the embedded stack: up, restart, status, logs, psql, down", _BEGIN
    ),
    *(
        [
            CommandEntry(
                "demo", "saga_cli.commands.begin.demo:demo", "run real shopping baskets through real databases", _BEGIN
            )
        ]
        if CHECKOUT_DEMO.exists()
        else []
    ),
    CommandEntry("validate", "saga_cli.commands.write.validate:validate", "check definitions", _WRITE),
    CommandEntry(
        "explain",
        "saga_cli.commands.write.explain:explain",
        "describe the plan, and what is undone when a step fails",
        _WRITE,
    ),
    CommandEntry(
        "simulate", "saga_cli.commands.write.simulate:simulate", "simulate every failure point without a server", _WRITE
    ),
    CommandEntry(
        "verify-undo",
        "saga_cli.commands.write.verify_undo:verify_undo",
        "run the undos on a copy of the databases and compare all rows",
        _WRITE,
    ),
    CommandEntry(
        "preview",
        "saga_cli.commands.write.preview:preview",
        "show a definition in a browser while it is edited",
        _WRITE,
    ),
    CommandEntry("graph", "saga_cli.commands.write.graph:graph", "draw the forward and the rollback graph", _WRITE),
    CommandEntry("diff", "saga_cli.commands.write.diff:diff", "compare two versions of a definition", _WRITE),
    CommandEntry(
        "actions", "saga_cli.commands.write.actions:actions", "list the registered actions and their arguments", _WRITE
    ),
    CommandEntry(
        "schema", "saga_cli.commands.write.schema:schema", "print the JSON Schema of the language, for editors", _WRITE
    ),
    CommandEntry(
        "participant",
        "saga_cli.commands.write.participant:app",
        "test a service that sagas call; serve a reference participant",
        _WRITE,
    ),
    CommandEntry("start", "saga_cli.commands.run.start:start", "start a saga, or one for each row of a file", _RUN),
    CommandEntry(
        "batch",
        "saga_cli.commands.run.batch:app",
        "all sagas of one start --from: show, pause, cancel, start failed ones again",
        _RUN,
    ),
    CommandEntry(
        "schedule",
        "saga_cli.commands.run.schedule:app",
        "scheduled starts: list, show, pause, resume, run now",
        _RUN,
    ),
    CommandEntry(
        "backfill", "saga_cli.commands.run.backfill:backfill", "start sagas for past times of a schedule", _RUN
    ),
    CommandEntry("list", "saga_cli.commands.run.list:list_sagas", "list sagas, one line each", _RUN),
    CommandEntry(
        "report",
        "saga_cli.commands.run.report:report",
        "the sagas of a day: outcomes, slowest steps, what needs somebody",
        _RUN,
    ),
    CommandEntry("show", "saga_cli.commands.run.show:show", "show the state and the history of one saga", _RUN),
    CommandEntry("watch", "saga_cli.commands.run.watch:watch", "follow a saga until it ends", _RUN),
    CommandEntry("open", "saga_cli.commands.run.open:open_saga", "open the saga in the Temporal Web UI", _RUN),
    CommandEntry("locks", "saga_cli.commands.run.locks:locks", "list locks, their owners and who waits for them", _RUN),
    CommandEntry(
        "cancel", "saga_cli.commands.decide.cancel:cancel", "cancel a running saga and undo its steps", _DECIDE
    ),
    CommandEntry(
        "pause", "saga_cli.commands.decide.pause:pause", "stop a running saga from starting anything new", _DECIDE
    ),
    CommandEntry("resume", "saga_cli.commands.decide.pause:resume", "let a paused saga go on", _DECIDE),
    CommandEntry(
        "signal", "saga_cli.commands.decide.signal:send_signal", "send a signal to a saga that waits", _DECIDE
    ),
    CommandEntry("parked", "saga_cli.commands.decide.parked:parked", "list what needs an operator, grouped", _DECIDE),
    CommandEntry("resolve", "saga_cli.commands.decide.resolve:resolve", "decide about a parked step", _DECIDE),
    CommandEntry(
        "notify",
        "saga_cli.commands.decide.notify:notify",
        "show a saga's notifications; send one again",
        _DECIDE,
    ),
    CommandEntry("undo", "saga_cli.commands.decide.undo:undo", "undo a saga that has completed", _DECIDE),
    CommandEntry(
        "forget",
        "saga_cli.commands.decide.forget:forget",
        "replace the sensitive values of a saga that has ended",
        _DECIDE,
    ),
    CommandEntry(
        "reconcile",
        "saga_cli.commands.operate.reconcile:reconcile",
        "compare sagas with databases, topics and tables",
        _OPERATE,
    ),
    CommandEntry("worker", "saga_cli.commands.operate.worker:worker", "run a worker in the foreground", _OPERATE),
    CommandEntry(
        "relay", "saga_cli.commands.operate.relay:relay", "publish the events of the outboxes to Kafka", _OPERATE
    ),
    CommandEntry(
        "enqueued",
        "saga_cli.commands.operate.enqueued:app",
        "what applications have enqueued: list, retry, drop",
        _OPERATE,
    ),
    CommandEntry(
        "serve", "saga_cli.commands.operate.serve:serve", "start sagas and serve their outcomes over HTTP", _OPERATE
    ),
    CommandEntry(
        "trigger",
        "saga_cli.commands.operate.trigger:trigger",
        "start and signal sagas with Kafka events, run consumers",
        _OPERATE,
    ),
    CommandEntry(
        "decrypt",
        "saga_cli.commands.operate.decrypt:decrypt",
        "print dead letters and rows with their encrypted values in clear",
        _OPERATE,
    ),
    CommandEntry(
        "setup",
        "saga_cli.commands.operate.setup:setup",
        "create search attributes, tables and topics; repeatable",
        _OPERATE,
    ),
    CommandEntry(
        "doctor", "saga_cli.commands.operate.doctor:doctor", "check everything that sagas need to run", _OPERATE
    ),
    CommandEntry(
        "check-deploy",
        "saga_cli.commands.operate.check_deploy:check_deploy",
        "check that this build can go on with the sagas that there are",
        _OPERATE,
    ),
)

ALIASES = {"describe": "show", "view": "show", "status": "show", "ls": "list", "inbox": "parked"}


def find_command(name: str) -> CommandEntry | None:
    name = ALIASES.get(name, name)
    return next((command for command in COMMANDS if command.name == name), None)


def command_names() -> tuple[str, ...]:
    return (*(command.name for command in COMMANDS), *ALIASES)


if __name__ == "__main__":
    main()
