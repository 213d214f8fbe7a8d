"""Facilities for every command: the global options of this call, the settings, a Temporal client."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeVar

from sagas.errors import UsageError

if TYPE_CHECKING:
    from temporalio.client import Client

    from saga_workers.location.locator import Locator
    from sagas.settings import Settings

T = TypeVar("T")
Format = Literal["human", "json", "jsonl"]


@dataclass(frozen=True, slots=True)
class GlobalOptions:
    """The options that every command takes, anywhere in the command line."""

    format: Format = "human"
    config: str | None = None
    debug: bool = False


_DEFAULT = GlobalOptions()
_current: ContextVar[GlobalOptions] = ContextVar("saga_options", default=_DEFAULT)

GLOBAL_OPTIONS_HELP = "Options of every command: -o json (--json), --jsonl, --config saga.toml, --debug."


def global_options() -> GlobalOptions:
    return _current.get()


def set_global_options(value: GlobalOptions) -> None:
    _current.set(value)


def split_options(words: Sequence[str]) -> tuple[GlobalOptions, list[str]]:
    """Split a command line into the global options and the rest; after ``--`` everything is the rest.

    Raises:
        UsageError: a value is missing or unknown.
    """
    options, remaining_words = GlobalOptions(), []
    queue = list(words)
    while queue:
        word = queue.pop(0)
        name, equals, value = word.partition("=")
        if word == "--":
            remaining_words += [word, *queue]
            break
        if word == "--debug":
            options = replace(options, debug=True)
        elif word in ("--json", "--jsonl"):
            options = _with_format(options, word[2:])
        elif name in ("--config", "-o"):
            if not equals:
                if not queue:
                    raise UsageError(f"{name} needs a value")
                value = queue.pop(0)
            if name == "-o":
                options = _with_format(options, value)
            elif options.config is not None:
                raise UsageError("--config is given more than once, and has one value: keep the one that is meant")
            else:
                options = replace(options, config=value)
        elif word in ("-ojson", "-ojsonl"):
            options = _with_format(options, word[2:])
        else:
            remaining_words.append(word)
    return options, remaining_words


def _with_format(options: GlobalOptions, value: str) -> GlobalOptions:
    if options.format not in (_DEFAULT.format, chosen := _format(value)):
        raise UsageError(f"the output is asked for as {options.format} and as {chosen}: keep the one that is meant")
    return replace(options, format=chosen)


def _format(value: str) -> Format:
    match value:
        case "json" | "jsonl":
            return value
        case "human" | "text":
            return "human"
    raise UsageError(f"-o must be json, jsonl or text, not {value}")


def load_settings() -> Settings:
    """The settings of the project this call is about."""
    from sagas.settings import load_settings as load

    return load(config=global_options().config)


def with_client(work: Callable[[Client, Settings], Awaitable[T]]) -> T:
    """Connect to Temporal and do something with it.

    Raises:
        ServerDownError: the server does not answer.
    """
    from saga_activities.silent_databases import asked_once
    from saga_cli.command_loop import run_command
    from saga_cli.own_identity import own_identity
    from saga_workers.temporal.temporal_client import connect

    settings = load_settings()

    async def connected() -> T:
        with asked_once():
            return await work(await connect(settings, identity=own_identity()), settings)

    return run_command(connected())


def with_locator(work: Callable[[Locator, Settings], Awaitable[T]]) -> T:
    """Connect to Temporal and do something with the locator, which finds the sagas of the project, wherever
    they live. Warn once if it was told of ends that it cannot verify.
    """

    async def locating(client: Client, settings: Settings) -> T:
        from saga_workers.location.locator import using_locator
        from sagas.protocol.doubtful_outcomes import NOT_VERIFIED, VERIFY_HELP

        async with using_locator(client, settings) as locator:
            result = await work(locator, settings)
        if locator.believes_unverified:
            print(f"warning: {NOT_VERIFIED}", f"help: {VERIFY_HELP}", sep="\n", file=sys.stderr, flush=True)
        return result

    return with_client(locating)


def target_line(settings: Settings) -> str:
    """The place that a command is about to change: "→ prod · payments" (server · namespace).

    Raises:
        UsageError: no server is named.
    """
    from saga_workers.temporal.temporal_client import connect_options

    options = connect_options(settings)
    where = "dev" if settings.temporal.embedded else settings.temporal.profile or options["target_host"]
    return f"→ {where} · {options['namespace']}"
