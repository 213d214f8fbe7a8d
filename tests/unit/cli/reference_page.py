"""Writes docs/reference/cli.md from the commands themselves, and saga-show.md with its schema from the model.

`python -m tests.unit.cli.reference_page` writes them again.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from saga_cli.main import ALIASES, COMMANDS, CommandEntry
from tests.unit.cli import view_schema

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "cli.md"

HEAD = """# The saga command

All commands and options of `saga`. The tables are generated from the code and match `--help`.

## Global options

| option | meaning |
|---|---|
| `-o json`, `--json` | one JSON document on standard output; messages go to standard error |
| `--jsonl` | one JSON document per line, for lists and for `watch` |
| `--config FILE` | the saga.toml to use; default: found upwards from the current folder |
| `--debug` | show the traceback behind an error |
| `--help` | what a command does, and its options |

They can be anywhere in the command line. An option that takes one value is refused when it is given twice. An error is
one sentence on standard error, with what to do next. So it is with `-o json`: standard output then has no document, and
the exit code says so. Colours are used on a terminal only; `NO_COLOR=1` disables them.

## Exit codes

| code | meaning |
|---|---|
| 0 | done; with `--wait` and `watch`: COMPLETED |
| 1 | failed; also TERMINATED, no server or worker answers, errors found by `validate`, a residue found by `simulate` |
| 2 | the command line, the settings or the input are invalid; nothing was started |
| 3 | COMPENSATED |
| 4 | PARKED, and nothing else can run |
| 5 | RESIDUE |
| 6 | cancelled and compensated |
| 7 | `--timeout` passed, and the saga is still running |
| 8 | differences found |
| 9 | refused: past the point of no return, or the id belongs to another run |
| 130 | Ctrl-C; the saga continues |
"""


def render() -> str:
    parts, group = [HEAD], ""
    for verb in COMMANDS:
        command = click_command(verb)
        if command is None:
            continue
        if verb.group != group:
            group = verb.group
            parts.append(f"## {group}\n")
        parts += _section(verb, command)
    return "\n".join(parts)


def missing() -> list[str]:
    """The verbs of the table whose file does not exist."""
    return [verb.name for verb in COMMANDS if importlib.util.find_spec(verb.target.partition(":")[0]) is None]


def click_command(verb: CommandEntry) -> Any:
    """The command with its options; None if its file does not exist."""
    import typer
    from typer.main import get_command

    module, _, attribute = verb.target.partition(":")
    if importlib.util.find_spec(module) is None:
        return None
    target = getattr(importlib.import_module(module), attribute)
    if not isinstance(target, typer.Typer):
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command(verb.name)(target)
        target = app
    return get_command(target)


def _section(verb: CommandEntry, command: Any) -> Iterator[str]:
    also = [alias for alias, name in ALIASES.items() if name == verb.name]
    yield f"### saga {verb.name}\n"
    if also:
        yield f"Also `saga {'`, `saga '.join(also)}`.\n"
    children = getattr(command, "commands", None)
    if not children:
        yield from _options(f"saga {verb.name}", command)
        return
    yield _help(command) or f"{verb.help[0].upper()}{verb.help[1:]}.\n"
    for name, child in children.items():
        yield f"#### saga {verb.name} {name}\n"
        yield from _options(f"saga {verb.name} {name}", child)


def _options(name: str, command: Any) -> Iterator[str]:
    parameters = [param for param in command.params if param.name != "help"]
    arguments = [parameter for parameter in parameters if parameter.param_type_name == "argument"]
    words = [name, *(_placeholder(argument) for argument in arguments)]
    if len(arguments) < len(parameters):
        words.append("[OPTIONS]")
    yield f"```\n{' '.join(words)}\n```\n"
    yield _help(command)
    if parameters:
        rows = [
            f"| `{_name(parameter)}` | {_cell(parameter.help or '')}{_choices(parameter)} |" for parameter in parameters
        ]
        yield "\n".join(["| | meaning |", "|---|---|", *rows]) + "\n"


def _help(command: Any) -> str:
    """The command's help; a paragraph of command lines (after \\b, for the terminal) becomes a code block."""
    paragraphs = [part.strip("\n") for part in inspect.cleandoc(command.help or "").split("\n\n")]
    shown = [
        "```\n" + part.removeprefix("\b").strip("\n") + "\n```" if part.startswith("\b") else part
        for part in paragraphs
        if part
    ]
    return "\n\n".join(shown) + "\n" if shown else ""


def _placeholder(argument: Any) -> str:
    name = (argument.metavar or argument.name.upper()).strip("[]…").removesuffix("]…")
    words = name + ("…" if argument.nargs == -1 else "")
    return words if argument.required else f"[{words}]"


def _name(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return _placeholder(parameter)
    names = ", ".join([*parameter.opts, *parameter.secondary_opts])
    if parameter.is_flag:
        return names
    return f"{names} {parameter.metavar or parameter.name.upper().strip('_')}"


def _choices(parameter: Any) -> str:
    choices = get_args(getattr(getattr(parameter, "type_descriptor", None), "annotation", None))
    if not choices or not all(isinstance(choice, str) for choice in choices):
        return ""
    default = f", default `{parameter.default}`" if parameter.default is not None else ""
    return f" ({', '.join(f'`{choice}`' for choice in choices)}{default})"


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
    view_schema.SCHEMA.write_text(view_schema.render_schema(), encoding="utf-8")
    view_schema.PAGE.write_text(view_schema.render(), encoding="utf-8")
