"""Makes a page of `saga preview` in a process of its own.

The actions of the project are imported to check it, and no process can import changed ones again. Also what hangs or
crashes there only costs this page.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sagas.errors import SagaError, UsageError
from sagas.settings.python_processes import python_command
from sagas.text.bounded_files import read_bounded
from sagas.text.exact_json import decode_json, encode_json
from sagas.text.printable import printable_line
from sagas.text.shell import saga_command
from sagas.text.shortening import shorten

if TYPE_CHECKING:
    from saga_cli.preview.page import Failures
    from sagas.definition.model import Definition
    from sagas.project import Project
    from sagas.settings import Settings

TIMEOUT = 60
"""Seconds in which a page must have been made."""

_NAME = re.compile(r"""^saga:[ \t]*["']?([^\s"'#]+)""", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class RenderedPage:
    """A page, the files that were ``read`` for it, and the ``folders`` in which definitions were looked for."""

    page: str
    read: Sequence[str]
    folders: Sequence[str]


async def render(config: Path, file: str | None, version: str) -> RenderedPage:
    """The page of a definition file, whose path is relative to the folder of saga.toml; None: the list of all.

    Raises UsageError if its process does not succeed.
    """
    process = await asyncio.create_subprocess_exec(
        *python_command(__name__, str(config), version, *([file] if file is not None else [])),
        cwd=config.parent,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(TIMEOUT):
            output, errors = await process.communicate()
    except TimeoutError:
        raise UsageError(f"the project could not be read within {TIMEOUT} s") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode != 0:
        lines = errors.decode(errors="replace").strip().splitlines() or ["its process has ended"]
        raise UsageError(f"the project cannot be read: {printable_line(shorten(lines[-1], 500))}")
    answer = decode_json(output)
    return RenderedPage(answer["page"], answer["read"], answer["folders"])


def files_of_actions(settings: Settings) -> list[str]:
    """The modules of the actions and those beside them, of which one may be why they cannot be imported."""
    names = [name if name.endswith(".py") else name.replace(".", "/") for name in settings.actions]
    return [str(file) for name in names for file in (settings.root / name).parent.glob("*.py")]


def saga_name(file: Path) -> str | None:
    """The name that a definition file gives its saga, even if it has errors."""
    try:
        match = _NAME.search(read_bounded(file).decode("utf-8-sig"))
    except (OSError, UnicodeDecodeError):
        return None
    return match[1] if match is not None else None


def _page(config: str, version: str, file: str | None) -> RenderedPage:
    from saga_cli.definition_checks import check_files, no_definitions_error, read_settings, relative_path
    from saga_cli.preview.page import error_page, file_page, list_page
    from sagas.definition.loader import parse_text
    from sagas.settings.trust import require_own

    try:
        settings, mistakes = read_settings(config)
        checked = check_files(settings, mistakes)
    except UsageError as error:
        return RenderedPage(error_page(error.message, error.help, version=version), [config], [])
    if not checked.files and not checked.diagnostics:
        error = no_definitions_error(settings)
        return RenderedPage(
            error_page(error.message, error.help, version=version, heading="Sagas"),
            [config],
            [str(folder) for folder in settings.definitions],
        )
    files = [str(relative_path(path)) for path in checked.files]
    read = [config, *files, *_own_modules(settings), *files_of_actions(settings)]
    folders = [str(folder) for folder in settings.definitions]
    if file is None:
        names = {each: saga_name(Path(each)) for each in files}
        return RenderedPage(list_page(names, checked.diagnostics, version=version), read, folders)
    require_own(Path(file))
    text = read_bounded(Path(file)).decode("utf-8-sig", errors="replace")
    parsed, _ = parse_text(text, file, checked.project.context)
    definition = checked.definitions.get(parsed.saga) if parsed is not None else None
    if definition is not None and definition != parsed:
        definition = None  # another file defines a saga of this name
    failures = _failures(definition, checked.project)
    return RenderedPage(
        file_page(file, text, checked.diagnostics, definition, failures, version=version), read, folders
    )


def _failures(definition: Definition | None, project: Project) -> Failures:
    from saga_cli.preview.page import Failures
    from sagas.simulation import Script, environment_of, failure_points, sample_input

    if definition is None:
        return Failures()
    try:
        outside = environment_of(project)
        input = sample_input(definition, outside)
        return Failures(input, failure_points(definition, input, Script(input_is_sample=True), outside))
    except SagaError as error:
        command = saga_command("simulate", definition.saga, "--input", "@FILE")
        return Failures(problem=f"{error.message}. `{command}` takes an input.")


def _own_modules(settings: Settings) -> Iterator[str]:
    """The files of the modules of the project that were imported."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file and Path(file).is_relative_to(settings.root) and "site-packages" not in file:
            yield file


def _main(config: str, version: str, file: str | None = None) -> None:
    with open(os.dup(sys.stdout.fileno()), "wb") as output:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # modules of the project may print
        output.write(encode_json(asdict(_page(config, version, file))))


if __name__ == "__main__":
    _main(*sys.argv[1:])
