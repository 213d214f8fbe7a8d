"""`saga init`: a new project that runs as it is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from saga_cli.commands.begin.patterns import commands_to_try, pattern_files
from saga_cli.output import echo, print_document, to_json
from sagas.errors import SagaError, UsageError
from sagas.text.shell import saga_command, shell_command


def init(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="a new folder (or an empty one)")],
    demo: Annotated[bool, typer.Option("--demo", help="the retail demo instead of a small shop")] = False,
    pattern: Annotated[
        str | None, typer.Option("--pattern", metavar="NAME", help="the example of a pattern: tcc, half-message, …")
    ] = None,
) -> None:
    """Create a new project: settings, one saga, its actions, its tables and a test."""
    if demo and pattern:
        raise UsageError("--demo and --pattern are different projects", help="give one of them")
    folder = Path(directory).expanduser()
    name = project_name(folder)
    require_empty(folder)
    files = pattern_files(pattern) if pattern else demo_files() if demo else project_files(name)
    try:
        for file, text in files.items():
            path = folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SagaError(f"{error.filename} cannot be written: {error.strerror}") from error
    if pattern:
        commands = commands_to_try(files["README.md"])
    else:
        start = saga_command("start", name)
        commands = ["saga dev up", "saga demo" if demo else f"{start} --set product=apple --set quantity=2 --wait"]
    document = {"root": str(folder.resolve()), "files": sorted(files)}
    print_document(document, human=lambda: _print_next_steps(folder, sorted(files), commands))


def project_name(folder: Path) -> str:
    """The last part of the path, as the name of a saga.

    Raises:
        UsageError: it is none. The name becomes a workflow type, a file and a word in a command.
    """
    name = folder.resolve().name
    if not re.fullmatch(r"[a-zA-Z][a-zA-Z0-9_-]*", name):
        raise UsageError(f"{name or folder} is not a project name; use a letter followed by letters, digits, - and _")
    return name.lower().replace("_", "-")


def require_empty(folder: Path) -> None:
    """Raise UsageError if the folder is not empty: existing files are never overwritten."""
    try:
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"{folder} is a file", help="saga init NEW_FOLDER")
        # A fresh repository and an editor's folder are not work that could be lost.
        if folder.is_dir() and any(not entry.name.startswith(".") for entry in folder.iterdir()):
            raise UsageError(f"{folder} is not empty", help="saga init NEW_FOLDER")
        if (folder / ".saga").exists():
            raise UsageError(
                f"{folder} already contains an embedded stack", help="run saga dev down --wipe there first"
            )
    except OSError as error:
        raise UsageError(f"{folder} cannot be read: {error.strerror}") from error


def project_files(name: str) -> dict[str, str]:
    """The templates with the project's name filled in, by path, and the schema that the editor's line names."""
    from sagas.definition.parser.language import language_schema

    templates = Path(__file__).parents[2] / "templates" / "project"
    schema = to_json(language_schema(), indent=2) + "\n"
    return {
        "saga.schema.json": schema,
        **_templates(templates, name),
    }


def _templates(templates: Path, name: str) -> dict[str, str]:
    return {
        str(file.relative_to(templates)).replace("NAME", name).removesuffix(".template"): file.read_text(
            encoding="utf-8"
        ).replace("{{name}}", name)
        for file in sorted(templates.rglob("*.template"))
    }


def demo_files() -> dict[str, str]:
    """The retail demo's own files. Raises SagaError: this installation is not a checkout and has none."""
    source = Path(__file__).parents[4] / "definitions" / "retail"
    if not (source / "saga.toml").exists():
        raise SagaError("the retail demo is not part of this installation", help="saga init DIR    without --demo")
    return _files(source)


def _files(source: Path) -> dict[str, str]:
    return {
        str(file.relative_to(source)): file.read_text(encoding="utf-8")
        for file in sorted(source.rglob("*"))
        if file.is_file() and not {".saga", "__pycache__", ".pytest_cache"} & set(file.relative_to(source).parts)
    }


def _print_next_steps(folder: Path, files: list[str], commands: Sequence[str]) -> None:
    echo(f"{folder}: {', '.join(files)}", "")
    echo(shell_command("cd", str(folder)), *commands)
