"""Loads definitions: finds the files of a project, and parses, builds and checks each of them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from sagas.definition.checks import check_draft
from sagas.definition.checks.nested_sagas import check_nested, check_nested_definitions
from sagas.definition.diagnostics import Diagnostic, Position, Report
from sagas.definition.digest import digest_of
from sagas.definition.model import Definition
from sagas.definition.parser.builder import build_draft
from sagas.definition.parser.draft import ProjectContext, SagaDraft
from sagas.definition.parser.language import SAGA
from sagas.definition.parser.pre_checks import with_pre_checks
from sagas.definition.parser.readable_steps import readable_steps
from sagas.definition.parser.yaml_nodes import load_yaml
from sagas.text.bounded_files import read_bounded
from sagas.text.shortening import shorten


def parse_text(text: str, file: str, project: ProjectContext) -> tuple[Definition | None, list[Diagnostic]]:
    """The definition in ``text``, and all its diagnostics. The definition is None if one of them is an error."""
    draft, diagnostics = parse_draft(text, file, project)
    return (draft.definition if draft else None), diagnostics


def load_definitions(
    paths: Iterable[Path | str], project: ProjectContext, *, replacing: Collection[Path] = ()
) -> tuple[dict[str, Definition], list[Diagnostic]]:
    """All definitions below ``paths`` by saga name, and all diagnostics.

    A definition with an error is left out, and so are all that have the same name: the order of the files must not
    decide which of them is run. ``replacing``: those of the paths that count instead of others with the same name.
    Diagnostics name the files relative to ``paths`` as given.
    """
    named: dict[str, list[SagaDraft]] = {}
    broken: list[SagaDraft] = []
    unreadable: list[str] = []
    diagnostics: list[Diagnostic] = []
    for path in find_definition_files(paths):
        report = Report(str(path))
        try:
            text = read_bounded(path).decode("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            report.add("SAGA110", Position(1, 1), f"the file cannot be read: {_reason(error)}")
            diagnostics += report.diagnostics
            continue
        draft, checked = _check_text(text, str(path), project)
        diagnostics += checked.diagnostics
        if draft is None:
            unreadable.append(text)
        elif checked.failed:
            broken.append(draft)
        else:
            named.setdefault(draft.definition.saga, []).append(draft)
    for name, same in named.items():
        named[name] = [draft for draft in same if Path(draft.file) in replacing] or same
    drafts = {name: same[0] for name, same in named.items() if len(same) == 1}
    for name, same in named.items():
        for draft, other in zip(same, [*same[1:], same[0]], strict=True) if len(same) > 1 else ():
            report = Report(draft.file)
            message = f"the saga `{name}` is also defined in {other.file}, so none of them is used"
            report.add("SAGA111", draft.root.node_of("saga"), message)
            diagnostics += report.diagnostics
            broken.append(draft)
    every = {name: draft.definition for name, draft in drafts.items()}
    definitions = dict(every)
    has_errors = {draft.definition.saga for draft in broken}
    for draft in (*drafts.values(), *broken):
        report = Report(draft.file)
        check_nested(draft, every, lambda name: name in has_errors or any(name in text for text in unreadable), report)
        diagnostics += report.diagnostics
        if report.failed and drafts.get(draft.definition.saga) is draft:
            del definitions[draft.definition.saga]
    diagnostics += _without_invalid_nested(drafts, definitions)
    return definitions, diagnostics


def _without_invalid_nested(drafts: Mapping[str, SagaDraft], definitions: dict[str, Definition]) -> list[Diagnostic]:
    """Remove the definitions that nest a saga which is not among them, at any level; returns why."""
    diagnostics: list[Diagnostic] = []
    removed = True
    while removed:
        removed = False
        for name in list(definitions):
            report = Report(drafts[name].file)
            check_nested_definitions(drafts[name], drafts, definitions, report)
            if report.failed:
                del definitions[name]
                removed = True
                diagnostics += report.diagnostics
    return diagnostics


def _reason(error: OSError | UnicodeDecodeError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else "it is not UTF-8 text"


def parse_draft(text: str, file: str, project: ProjectContext) -> tuple[SagaDraft | None, list[Diagnostic]]:
    """The saga in ``text`` with its positions, and all diagnostics; the saga is None if one of them is an error."""
    draft, report = _check_text(text, file, project)
    return (None if report.failed else draft), report.diagnostics


def _check_text(text: str, file: str, project: ProjectContext) -> tuple[SagaDraft | None, Report]:
    """The saga in ``text`` as far as it can be read, and all diagnostics that do not follow from another one.

    A check that fails is also a diagnostic of its file: others may have written the next file.
    """
    try:
        return _checked(text, file, project)
    except RecursionError:
        why = "a part of it is nested too deeply to be checked"
    except Exception as error:  # noqa: BLE001 - see above
        why = (
            f"a check of it fails with {type(error).__name__}: {shorten(' '.join(str(error).split()))} (a bug in saga)"
        )
    report = Report(file)
    report.add("SAGA110", Position(1, 1), why)
    return None, report


def _checked(text: str, file: str, project: ProjectContext) -> tuple[SagaDraft | None, Report]:
    report = Report(file)
    root = load_yaml(text, report)
    top = None if root is None else SAGA.read(root, report)
    steps = None if top is None else readable_steps(top, report)
    if top is None or steps is None:
        return None, report
    usable = with_pre_checks(steps.steps, report, forward_only=top.get("recovery") == "forward")
    top.values["steps"] = usable
    draft = build_draft(file, top, steps.graph(usable, report), project)
    earlier = report.diagnostics
    check_draft(draft, report)
    report.retain(lambda each: each in earlier or steps.is_certain(each))
    if not report.failed:
        draft = replace(draft, definition=replace(draft.definition, digest=digest_of(draft.definition)))
    return draft, report


_SKIPPED_FOLDERS = {"__pycache__", "node_modules"}


def find_definition_files(paths: Iterable[Path | str]) -> list[Path]:
    """Given files as they are; in given folders every `*.saga.yaml`, and any other YAML file with a `saga:` key.

    A path that does not exist is kept, so that reading it produces a diagnostic. A file to which several paths lead, as
    by a symbolic link, is given once, by the first of them.
    """
    files: dict[str, Path] = {}
    for path in map(Path, paths):
        if not os.path.isdir(path):  # unlike Path.is_dir, it takes a name that is too long
            files.setdefault(_real_path(path), path)
            continue
        for folder, folders, names in os.walk(path):
            folders[:] = sorted(
                folder for folder in folders if folder not in _SKIPPED_FOLDERS and not folder.startswith(".")
            )
            for name in sorted(names):
                if name.endswith((".yaml", ".yml")) and _is_definition(Path(folder) / name):
                    files.setdefault(_real_path(Path(folder) / name), Path(folder) / name)
    return list(files.values())


def _real_path(path: Path) -> str:
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):
        return str(path)  # reading it tells what is wrong


def _is_definition(path: Path) -> bool:
    if path.name.endswith((".saga.yaml", ".saga.yml")):
        return True
    try:
        lines = read_bounded(path).decode().splitlines()
    except (OSError, UnicodeDecodeError):
        return False
    return any(line.startswith(("saga:", '"saga":', "'saga':")) for line in lines)
