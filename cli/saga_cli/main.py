"""The entry point: finds the verb, runs it, and turns whatever happens into one sentence and an exit code."""

from __future__ import annotations

import gc
import importlib
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from saga_cli import verbs
from saga_cli.context import HELP, options, set_options, take_options
from saga_cli.interrupts import INTERRUPTED
from sagas.errors import SagaError, UsageError


def main() -> NoReturn:
    """Run the command line of this process and end the process."""
    if sys.argv[1:2] != ["worker"]:
        # A command lives for a moment, and most of it is imports: collecting garbage among them finds none.
        gc.set_threshold(100_000)
    for stream in (sys.stdout, sys.stderr):
        # A terminal without the characters we print gets a replacement, not a traceback.
        getattr(stream, "reconfigure", lambda **_: None)(errors="replace")
    code = run(sys.argv[1:])
    # The Temporal client's native threads can crash an interpreter that winds down in order, after all the
    # work is done; the exit code and buffered output would be lost (temporalio/sdk-python#300).
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:
        code = code or 1
    os._exit(code)


def run(words: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    try:
        if sys.version_info < (3, 11):  # noqa: UP036 - a checkout can be run by any Python
            raise UsageError(f"Python 3.11 or newer is needed; this is {sys.version.split()[0]}.")
        found, rest = take_options(words)
        set_options(found)
        return _dispatch(rest)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (`head`, a pager) has seen enough. What is still buffered must not fail at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except Exception as error:  # noqa: BLE001 - the one place where every error becomes a sentence
        return _tell("--debug" in words, error)


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("--help", "-h", "help"):
        if len(words) > 1 and words[0] == "help":
            return _dispatch([words[1], "--help"])
        print(_overview())
        return 0
    if words[0] in ("--version", "version"):
        from importlib.metadata import version

        print(version("saga-orchestrator"))
        return 0
    verb = verbs.find(words[0])
    if verb is None:
        from sagas.settings.model import did_you_mean

        raise UsageError(
            f"There is no command {words[0]}{did_you_mean(words[0], verbs.all_names())}", help="saga --help"
        )
    return _call(verb, words[1:])


def _call(verb: verbs.Verb, words: list[str]) -> int:
    import typer
    from typer.main import get_command

    module, _, attribute = verb.target.partition(":")
    target: typer.Typer | Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    if not isinstance(target, typer.Typer):
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command(verb.name, epilog=HELP, context_settings={"help_option_names": ["--help", "-h"]})(target)
        target = app
    command = get_command(target)
    result = command.main(args=words, prog_name=f"saga {verb.name}", standalone_mode=False)
    return result if isinstance(result, int) else 0


def _tell(debug: bool, error: Exception) -> int:
    """Print an error as a sentence; returns the exit code."""
    if debug or options().debug:
        import traceback

        traceback.print_exception(error)
    if type(error).__name__ == "NoArgsIsHelpError":
        print(getattr(error, "message", ""))
        return 2
    if isinstance(error, SagaError):
        message, help, code = error.message, error.help, error.exit_code
    elif (wording := getattr(error, "format_message", None)) is not None:
        # What typer raises for a wrong command line; its classes are not public.
        message, help, code = _did_you_mean(wording()), _usage_help(error), getattr(error, "exit_code", 2)
    elif type(error).__name__ == "Abort":
        return INTERRUPTED
    elif type(error).__module__.startswith("temporalio.") and type(error).__name__ == "RPCError":
        message, help, code = f"The Temporal server did not do it: {error}", "saga doctor", 1
    else:
        what = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        message, help, code = f"This is a bug in saga ({what}).", "run it again with --debug to see where", 1
    print(f"error: {message}", file=sys.stderr)
    if help:
        print(f"help: {help}", file=sys.stderr)
    return code


def _did_you_mean(message: str) -> str:
    """Typer's "(Possible options: --a, --b)" in the words of our own errors."""
    return re.sub(r"\.? \(Possible options: ([^,)]+)[^)]*\)", r"; did you mean \1?", message)


def _usage_help(error: Exception) -> str | None:
    context = getattr(error, "ctx", None)
    return f"{context.command_path} --help" if context is not None else None


def _overview() -> str:
    lines = ["Sagas in YAML, run by Temporal: forward, or undone, never half done.", "", "saga COMMAND …"]
    group = ""
    for verb in verbs.VERBS:
        if verb.group != group:
            group = verb.group
            lines += ["", group]
        lines.append(f"  {verb.name:<10} {verb.help}")
    lines += ["", f"saga COMMAND --help tells more. {HELP}"]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
