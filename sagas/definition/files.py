"""Finds the definitions of a project and reads them together, so that they can be checked against each other."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sagas.definition.diagnostics import Diagnostic, Mark, Report
from sagas.definition.draft import Connections, Draft
from sagas.definition.model import Definition
from sagas.definition.parse import parse_draft

if TYPE_CHECKING:
    from sagas.actions import Action

_SKIPPED = {"__pycache__", "node_modules"}


def find_files(paths: Iterable[Path | str]) -> list[Path]:
    """Files as they are; of folders every `*.saga.yaml`, and every other YAML file that has a `saga:` key.

    A path that does not exist is kept, so that reading it gives a diagnostic.
    """
    found: dict[Path, None] = {}
    for path in map(Path, paths):
        if not path.is_dir():
            found[path] = None
            continue
        for folder, folders, names in os.walk(path):
            folders[:] = sorted(one for one in folders if one not in _SKIPPED and not one.startswith("."))
            for name in sorted(names):
                if name.endswith((".yaml", ".yml")) and _is_saga(Path(folder) / name):
                    found[Path(folder) / name] = None
    return list(found)


def _is_saga(path: Path) -> bool:
    if path.name.endswith((".saga.yaml", ".saga.yml")):
        return True
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return False
    return any(line.startswith(("saga:", '"saga":', "'saga':")) for line in lines)


def load_definitions(
    paths: Iterable[Path | str],
    actions: Mapping[str, Action],
    *,
    connections: Connections | None = None,
) -> tuple[dict[str, Definition], list[Diagnostic]]:
    """All definitions below ``paths`` by saga name, and everything there is to say about them.

    A definition with an error is left out. File names in diagnostics are as the paths were given.
    """
    drafts: dict[str, Draft] = {}
    diagnostics: list[Diagnostic] = []
    for path in find_files(paths):
        report = Report(str(path))
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            report.add("SAGA110", Mark(1, 1), f"the file cannot be read: {_reason(error)}")
            diagnostics += report.diagnostics
            continue
        draft, found = parse_draft(text, str(path), actions, connections=connections)
        diagnostics += found
        if draft is None:
            continue
        name = draft.definition.saga
        if name in drafts:
            place = draft.top.at("saga")
            report.add("SAGA111", place, f"the saga `{name}` is already defined in {drafts[name].file}")
            diagnostics += report.diagnostics
        else:
            drafts[name] = draft
    return {name: draft.definition for name, draft in drafts.items()}, diagnostics


def _reason(error: OSError | UnicodeDecodeError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else "it is not UTF-8 text"
