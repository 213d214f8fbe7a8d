"""The output of `saga diff` for revisions: for a terminal, as an HTML page, as annotations of a pull request."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Literal

from saga_cli.output import make_console
from saga_cli.render.definition_diff import diff_section, keep_lines, print_diff
from sagas.definition.diagnostic_codes import DiagnosticCode
from sagas.definition.diagnostic_formats import format_diagnostics, sarif_document
from sagas.definition.diagnostics import Diagnostic
from sagas.presentation.definition_diff import Change
from sagas.presentation.html_page import html_page
from sagas.presentation.project_diff import ProjectDiff, SagaDiff

_CODES = {
    "saga-attention": DiagnosticCode(
        "warning", "new sagas promise less, may do something twice, or refuse what was accepted", "review the change"
    ),
    "saga-change": DiagnosticCode("note", "new sagas do something else", "review the change"),
    "saga-running": DiagnosticCode(
        "warning", "running sagas still need what only the old version names", "keep it until they have ended"
    ),
    "saga-unreadable": DiagnosticCode("error", "a version of the definition has errors", "correct the definition"),
}
_FATES = {
    "added": "a new saga",
    "removed": "removed: nothing starts it any more; running sagas go on with the definition with which they started",
    "unreadable": "it cannot be compared, because its file has errors in one of the versions",
}


def print_project_diff(difference: ProjectDiff) -> None:
    """Print the changed sagas one below the other, then how many are as before."""
    from rich.text import Text

    out = make_console()
    for saga in difference.sagas:
        if saga.difference is not None and saga.fate == "changed":
            print_diff(saga.difference)
        elif saga.fate != "same":
            out.print(Text.assemble((saga.saga, "bold"), f"  {_FATES[saga.fate]}"), soft_wrap=True)
            for line in keep_lines(saga.still_needed):
                out.print(Text(f"  {line}"), soft_wrap=True)
        if saga.fate != "same":
            out.print()
    for version, error in _errors(difference):
        out.print(Text(f"{version}: {error}", style="red"), soft_wrap=True)
    out.print(_unchanged(difference))


def project_diff_page(title: str, difference: ProjectDiff) -> str:
    """Render the differences between two revisions of a project as one HTML page."""
    sections = [
        diff_section(saga.difference)
        if saga.difference is not None and saga.fate == "changed"
        else f"<h2>{escape(saga.saga)}</h2>\n"
        + "".join(f"<p>{escape(line)}</p>\n" for line in (_FATES[saga.fate], *keep_lines(saga.still_needed)))
        for saga in difference.sagas
        if saga.fate != "same"
    ]
    errors = "".join(f"<li>{escape(f'{version}: {error}')}</li>" for version, error in _errors(difference))
    body = f"<h1>{escape(title)}</h1>\n{''.join(sections)}" + (f"<ul>{errors}</ul>\n" if errors else "")
    return html_page(title, f"{body}<p>{escape(_unchanged(difference))}</p>")


def _errors(difference: ProjectDiff) -> Iterator[tuple[str, Diagnostic]]:
    yield from (("old version", error) for error in difference.old_errors)
    yield from (("new version", error) for error in difference.new_errors)


def change_annotations(difference: ProjectDiff, format: Literal["github", "sarif"], folder: str) -> str:
    """The changes at the lines of the new version. ``folder``: the project's in the repository, "" for its root."""
    diagnostics = [
        Diagnostic(f"{folder}{each.file}", each.line, each.column, each.code, each.severity, each.message, each.help)
        for each in _annotations(difference)
    ]
    if format == "sarif":
        return sarif_document("saga diff", _CODES, diagnostics)
    return format_diagnostics(diagnostics, "github")


def _annotations(difference: ProjectDiff) -> Iterator[Diagnostic]:
    for saga in difference.sagas:
        if saga.fate in ("added", "removed"):
            yield _annotation(saga, "saga-change", None, f"{saga.saga}: {_FATES[saga.fate]}")
        for change in saga.changes:
            if change.meaning is not None:
                code = "saga-attention" if change.attention else "saga-change"
                yield _annotation(saga, code, change, f"{saga.saga}, {change.field}: {change.meaning}")
        names = [f"{kind} {', '.join(names)}" for kind, names in saga.still_needed.items() if names]
        if names:
            yield _annotation(saga, "saga-running", None, f"{saga.saga}: running sagas still need {'; '.join(names)}")
    for error in difference.new_errors:
        yield Diagnostic(
            error.file,
            error.line,
            error.column,
            "saga-unreadable",
            "error",
            f"{error.code} {error.message}",
            error.help,
        )


def _annotation(saga: SagaDiff, code: str, change: Change | None, message: str) -> Diagnostic:
    """An annotation at the line of the changed field; of a saga that is gone, at the first line."""
    line, file = 1, ""
    if (place := saga.new or saga.old) is not None:
        file = place.file
    if saga.new is not None:
        line = saga.new.root.line if change is None else saga.new.line_of(change)
    return Diagnostic(file, line, 1, code, _CODES[code].severity, message)


def _unchanged(difference: ProjectDiff) -> str:
    count = sum(saga.fate == "same" for saga in difference.sagas)
    return f"{count} {'saga is' if count == 1 else 'sagas are'} as before"
