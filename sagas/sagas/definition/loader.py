"""Loads definitions: finds the files of a project, and parses, builds and checks each of them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from sagas.definition.analysis.step_graph import CycleError, StepGraph, build_step_graph
from sagas.definition.checks import check_draft
from sagas.definition.checks.kinds import check_nested
from sagas.definition.diagnostics import Diagnostic, Position, Report
from sagas.definition.model import Definition
from sagas.definition.parser.builder import build_draft
from sagas.definition.parser.draft import ProjectContext, SagaDraft
from sagas.definition.parser.field_types import ParsedMapping, quoted_names, suggestion_help
from sagas.definition.parser.language import SAGA
from sagas.definition.parser.pre_checks import with_pre_checks
from sagas.definition.parser.yaml_nodes import YamlNode, load_yaml
from sagas.definition.snapshot import digest_of
from sagas.text.bounded_files import read_bounded


def parse_text(text: str, file: str, project: ProjectContext) -> tuple[Definition | None, list[Diagnostic]]:
    """The definition in ``text``, and all its diagnostics. The definition is None if one of them is an error."""
    draft, diagnostics = parse_draft(text, file, project)
    return (draft.definition if draft else None), diagnostics


def load_definitions(
    paths: Iterable[Path | str], project: ProjectContext
) -> tuple[dict[str, Definition], list[Diagnostic]]:
    """All definitions below ``paths`` by saga name, and all diagnostics.

    A definition with an error is left out. Diagnostics name the files relative to ``paths`` as given.
    """
    drafts: dict[str, SagaDraft] = {}
    broken: set[str] = set()
    diagnostics: list[Diagnostic] = []
    for path in find_definition_files(paths):
        report = Report(str(path))
        try:
            text = read_bounded(path).decode("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            report.add("SAGA110", Position(1, 1), f"the file cannot be read: {_reason(error)}")
            diagnostics += report.diagnostics
            continue
        draft, draft_diagnostics = parse_draft(text, str(path), project)
        diagnostics += draft_diagnostics
        if draft is None:
            broken.add(path.name)
        elif draft.definition.saga in drafts:
            name = draft.definition.saga
            report.add(
                "SAGA111", draft.root.node_of("saga"), f"the saga `{name}` is already defined in {drafts[name].file}"
            )
            diagnostics += report.diagnostics
        else:
            drafts[draft.definition.saga] = draft
    every = {name: draft.definition for name, draft in drafts.items()}
    definitions = dict(every)
    for name, draft in drafts.items():
        report = Report(draft.file)
        check_nested(draft, every, all_known=not broken, report=report)
        diagnostics += report.diagnostics
        if report.failed:
            del definitions[name]
    return definitions, diagnostics


def _reason(error: OSError | UnicodeDecodeError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else "it is not UTF-8 text"


def parse_draft(text: str, file: str, project: ProjectContext) -> tuple[SagaDraft | None, list[Diagnostic]]:
    """The saga in ``text`` with its positions, and all diagnostics; the saga is None if one of them is an error."""
    report = Report(file)
    draft = _read_draft(text, report, project)
    if draft is not None:
        check_draft(draft, report)
    if draft is None or report.failed:
        return None, report.diagnostics
    definition = draft.definition
    return replace(draft, definition=replace(definition, digest=digest_of(definition))), report.diagnostics


def _read_draft(text: str, report: Report, project: ProjectContext) -> SagaDraft | None:
    root = load_yaml(text, report)
    if root is None:
        return None
    top = SAGA.read(root, report)
    if top is None:
        return None
    steps: list[ParsedMapping] = top.get("steps", [])
    usable = [step for step in steps if step.get("id") and step.get("uses")]
    if not usable or len(usable) < len(steps):
        return None
    usable = with_pre_checks(usable, report, forward_only=top.get("recovery") == "forward")
    top.values["steps"] = usable
    graph = _build_graph(usable, report)
    return build_draft(report.file, top, graph, project) if graph else None


def _build_graph(steps: list[ParsedMapping], report: Report) -> StepGraph | None:
    """The graph of the steps; None after reporting invalid ids or needs."""
    first: dict[str, ParsedMapping] = {}
    sound = True
    for step in steps:
        id = step.get("id")
        if id in first:
            line = first[id].node_of("id").line
            report.add("SAGA108", step.node_of("id"), f"the step id `{id}` is already used in line {line}")
            sound = False
        else:
            first[id] = step
    for id, step in first.items():
        for node in _written_needs(step):
            if isinstance(node.value, str) and node.value not in first:
                help = suggestion_help(node.value, first, f"the steps are {quoted_names(first)}")
                report.add("SAGA201", node, f"`{id}` needs `{node.value}`, which is not a step", help)
                sound = False
    if not sound:
        return None
    try:
        return build_step_graph({id: step.values.get("needs") for id, step in first.items()})
    except CycleError as error:
        step = first[error.steps[0]]
        report.add("SAGA202", step.position_of("needs"), f"steps need each other in a cycle: {error}")
        return None


def _written_needs(step: ParsedMapping) -> list[YamlNode]:
    """The nodes under `needs`, which is one id or a list of them."""
    if "needs" not in step:
        return []
    node = step.node_of("needs")
    return node.value if isinstance(node.value, list) else [node]


_SKIPPED_FOLDERS = {"__pycache__", "node_modules"}


def find_definition_files(paths: Iterable[Path | str]) -> list[Path]:
    """Given files as they are; in given folders every `*.saga.yaml`, and any other YAML file with a `saga:` key.

    A path that does not exist is kept, so that reading it produces a diagnostic.
    """
    files: dict[Path, None] = {}
    for path in map(Path, paths):
        if not os.path.isdir(path):  # unlike Path.is_dir, it takes a name that is too long
            files[path] = None
            continue
        for folder, folders, names in os.walk(path):
            folders[:] = sorted(
                folder for folder in folders if folder not in _SKIPPED_FOLDERS and not folder.startswith(".")
            )
            for name in sorted(names):
                if name.endswith((".yaml", ".yml")) and _is_definition(Path(folder) / name):
                    files[Path(folder) / name] = None
    return list(files)


def _is_definition(path: Path) -> bool:
    if path.name.endswith((".saga.yaml", ".saga.yml")):
        return True
    try:
        lines = read_bounded(path).decode().splitlines()
    except (OSError, UnicodeDecodeError):
        return False
    return any(line.startswith(("saga:", '"saga":', "'saga':")) for line in lines)
