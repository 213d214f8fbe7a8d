"""The way into the language: from text, files and folders to checked definitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sagas.definition.checks.nested import check_nested
from sagas.definition.diagnostics import Diagnostic, Mark, Report
from sagas.definition.draft import Connections, Draft, KafkaHome, SparkHome
from sagas.definition.files import find_files
from sagas.definition.model import Definition
from sagas.definition.reading import parse_draft

if TYPE_CHECKING:
    from sagas.actions import Action


def parse_text(
    text: str,
    file: str,
    actions: Mapping[str, Action],
    connections: Connections | None = None,
    spark: SparkHome | None = None,
    kafka: KafkaHome | None = None,
) -> tuple[Definition | None, list[Diagnostic]]:
    """The definition in ``text``, and everything there is to say about it.

    ``actions`` are the project's Python actions, ``connections`` the tables ``[connections.*]`` of saga.toml (None:
    not known, so connections are not checked), ``spark`` and ``kafka`` what it says about these. The definition is None
    when a diagnostic is an error.
    """
    draft, diagnostics = parse_draft(text, file, actions, connections, spark, kafka)
    return (draft.definition if draft else None), diagnostics


def load_definitions(
    paths: Iterable[Path | str],
    actions: Mapping[str, Action],
    connections: Connections | None = None,
    spark: SparkHome | None = None,
    kafka: KafkaHome | None = None,
) -> tuple[dict[str, Definition], list[Diagnostic]]:
    """All definitions below ``paths`` by saga name, and everything there is to say about them.

    A definition with an error is left out. File names in diagnostics are as the paths were given.
    """
    drafts: dict[str, Draft] = {}
    broken: set[str] = set()
    diagnostics: list[Diagnostic] = []
    for path in find_files(paths):
        report = Report(str(path))
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            report.add("SAGA110", Mark(1, 1), f"the file cannot be read: {_reason(error)}")
            diagnostics += report.diagnostics
            continue
        draft, found = parse_draft(text, str(path), actions, connections, spark, kafka)
        diagnostics += found
        if draft is None:
            broken.add(path.name)
        elif draft.definition.saga in drafts:
            name = draft.definition.saga
            report.add("SAGA111", draft.top.at("saga"), f"the saga `{name}` is already defined in {drafts[name].file}")
            diagnostics += report.diagnostics
        else:
            drafts[draft.definition.saga] = draft
    definitions = {name: draft.definition for name, draft in drafts.items()}
    for name, draft in drafts.items():
        report = Report(draft.file)
        check_nested(draft, definitions, certain=not broken, report=report)
        diagnostics += report.diagnostics
        if report.failed:
            del definitions[name]
    return definitions, diagnostics


def _reason(error: OSError | UnicodeDecodeError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else "it is not UTF-8 text"
