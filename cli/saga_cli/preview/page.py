"""The pages of `saga preview`: one of each definition file, and the list of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from urllib.parse import quote

from saga_cli.output import to_json
from saga_cli.render.simulation import describe_residue, failure_table
from sagas.definition.diagnostics import Diagnostic
from sagas.definition.model import Definition, StepDefinition
from sagas.presentation.explain import (
    Explanation,
    describe_commit_point,
    describe_locks,
    describe_notification,
    describe_redelivery,
    describe_schedule,
    describe_undo_after_failure,
)
from sagas.presentation.graph import build_saga_graph
from sagas.presentation.graph_picture import to_svg
from sagas.presentation.html_page import html_page
from sagas.presentation.step_phrases import Phrase, step_phrases
from sagas.simulation import FailurePoint
from sagas.text.shortening import counted

SCRIPT = "/follow.js"

FAULT_SENTENCES: Mapping[str, str] = {
    "locked": "Another saga holds the locks for longer than this one waits.",
    "rejected": "It is rejected.",
    "failed": "Every attempt fails, and nothing happened.",
    "unknown": "No attempt gets a response, and nothing happened.",
    "crash after effect": "The effect happens, then the worker dies.",
    "compensation fails": "Something later is rejected, and its compensation is rejected.",
    "late": "No attempt gets a response, and its request arrives after everything else.",
    "cancel": "The saga is cancelled while it is in flight.",
    "deadline": "The deadline passes while it is in flight.",
}


@dataclass(frozen=True, slots=True)
class Failures:
    """The runs in which a step fails, with this ``input``; or the ``problem`` why they cannot be simulated."""

    input: object = None
    cells: Sequence[FailurePoint] = ()
    problem: str | None = None


def list_page(files: Mapping[str, str | None], diagnostics: Sequence[Diagnostic], *, version: str) -> str:
    """The page with all files, by their path; each with the name of its saga, if it has one."""
    rows = []
    for file, saga in files.items():
        own = [diagnostic for diagnostic in diagnostics if diagnostic.file == file]
        link = f'<a href="/?file={quote(file, safe="")}">{escape(saga or file)}</a>'
        rows.append(f'<tr><th scope="row">{link}</th><td>{escape(file)}</td><td>{_verdict(own)}</td></tr>')
    others = [diagnostic for diagnostic in diagnostics if diagnostic.file not in files]
    body = (
        f"<h1>Sagas</h1>\n{_diagnostic_list(others)}"
        '<table><thead><tr><th scope="col">saga</th><th scope="col">file</th><th scope="col">check</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )
    return html_page("Sagas", body, follow=(SCRIPT, version))


def error_page(message: str, help: str | None, *, version: str, heading: str = "The project cannot be read") -> str:
    """The page of what cannot be shown, with the reason and what to do."""
    more = f"<p>{escape(help)}</p>" if help else ""
    body = f'<h1>{escape(heading)}</h1>\n<p class="fail">{escape(message)}</p>{more}'
    return html_page(heading, body, follow=(SCRIPT, version))


def file_page(
    file: str,
    text: str,
    diagnostics: Sequence[Diagnostic],
    definition: Definition | None,
    failures: Failures,
    *,
    version: str,
) -> str:
    """The page of one file; ``definition`` is None while it has errors."""
    own = [diagnostic for diagnostic in diagnostics if diagnostic.file == file]
    others = [diagnostic for diagnostic in diagnostics if diagnostic.file != file and diagnostic.severity == "error"]
    title = definition.saga if definition is not None else file
    parts = [f'<p><a href="/?all">All sagas</a></p>\n<h1>{escape(title)}</h1>']
    if definition is not None and definition.description:
        parts.append(f"<p>{escape(definition.description)}</p>")
    parts.append(f"<p>{_verdict(own)}</p>{_diagnostic_list(own)}")
    if others:
        parts.append(f"<h2>Errors elsewhere in the project</h2>{_diagnostic_list(others)}")
    if definition is None:
        parts.append("<p>The graph and the plan appear when the errors are corrected.</p>")
    else:
        parts += _sections(definition, failures)
    parts.append(f"<h2>{escape(file)}</h2>{_source(text, own)}")
    return html_page(title, "\n".join(parts), follow=(SCRIPT, version))


def _sections(definition: Definition, failures: Failures) -> Iterable[str]:
    graph = to_svg(build_saga_graph(definition), link=_anchor)
    yield f'<div class="wide">{graph}</div>'
    yield "<p><small>Solid lines lead forward, dashed ones backward. A click on a step shows its failures.</small></p>"
    sentences = [describe_commit_point(definition), describe_locks(definition), describe_schedule(definition)]
    sentences.append(describe_redelivery(definition))
    sentences += [f"✉ {describe_notification(notification)}" for notification in definition.notify]
    yield "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences if sentence is not None)
    yield "<h2>When a step fails</h2>"
    if failures.problem is not None:
        yield f'<p class="warn">{escape(failures.problem)}</p>'
    else:
        yield failure_table(definition, failures.cells, link=_anchor)
        yield f"<details><summary>Input</summary><pre>{escape(to_json(failures.input, indent=2))}</pre></details>"
    yield "<h2>Steps</h2>"
    plan = Explanation(definition)
    for number, step in enumerate(definition.steps, 1):
        yield _step_section(plan, number, step, failures.cells)


def _anchor(entry: str) -> str:
    """The address of the section of a step, or of an item of it."""
    return f"#step-{quote(entry.partition('#')[0], safe='')}"


def _step_section(plan: Explanation, number: int, step: StepDefinition, cells: Sequence[FailurePoint]) -> str:
    name = "" if step.name == step.id else f" <small>{escape(step.name)}</small>"
    lines = "".join(f"<li>{_html(phrases)}</li>" for phrases in step_phrases(plan, step))
    faults: dict[str, str] = {}
    for cell in cells:  # those of a for_each are told once
        if cell.step.partition("#")[0] == step.id:
            faults.setdefault(cell.fault, _fault(plan.definition, cell))
    return (
        f'<section id="step-{escape(step.id)}"><h3>{number}. {escape(step.id)}{name}</h3>'
        f'<ul class="plain">{lines}</ul>{"".join(faults.values())}</section>'
    )


def _html(phrases: Iterable[Phrase]) -> str:
    return "".join(
        f'<span class="{escape(phrase.style)}">{escape(phrase.text)}</span>' if phrase.style else escape(phrase.text)
        for phrase in phrases
    )


def _fault(definition: Definition, cell: FailurePoint) -> str:
    style = "residue" if cell.residue else cell.state
    undone = "".join(f"<li>↩ {escape(id)}: {escape(_undo(definition, id))}</li>" for id in cell.undone)
    notes = [
        f"{row['step']} waits for an operator, who may decide: {', '.join(row['decisions'])}" for row in cell.parked
    ]
    notes += [describe_residue(row) for row in cell.residue]
    order = f"<p>Undone, in this order:</p><ol>{undone}</ol>" if undone else "<p>Nothing is undone.</p>"
    return (
        f"<details><summary>{escape(cell.fault)}: the saga ends "
        f'<span class="{escape(style)}">{escape(cell.state)}</span></summary>'
        f"<p>{escape(FAULT_SENTENCES[cell.fault])}</p>{order}"
        f"{''.join(f'<p>{escape(note)}</p>' for note in notes)}</details>"
    )


def _undo(definition: Definition, entry: str) -> str:
    return describe_undo_after_failure(definition.step(entry.split("/")[0].partition("#")[0]))


def _verdict(diagnostics: Sequence[Diagnostic]) -> str:
    errors = sum(diagnostic.severity == "error" for diagnostic in diagnostics)
    warnings = len(diagnostics) - errors
    if not diagnostics:
        return '<span class="pass">✔ no problems found</span>'
    counts = [counted(errors, "error")] * bool(errors) + [counted(warnings, "warning")] * bool(warnings)
    return f'<span class="{"fail" if errors else "warn"}">✖ {", ".join(counts)}</span>'


def _diagnostic_list(diagnostics: Sequence[Diagnostic]) -> str:
    return f'<ul class="plain">{"".join(_diagnostic(each) for each in diagnostics)}</ul>' if diagnostics else ""


def _diagnostic(diagnostic: Diagnostic) -> str:
    place = f"{diagnostic.file}:{diagnostic.line}:{diagnostic.column}"
    style = "fail" if diagnostic.severity == "error" else "warn"
    help = f"<small>{escape(diagnostic.help)}</small>" if diagnostic.help else ""
    return (
        f'<li><a href="#line-{diagnostic.line}">{escape(place)}</a> {escape(diagnostic.code)} '
        f'<span class="{style}">{escape(diagnostic.message)}</span>{help}</li>'
    )


def _source(text: str, diagnostics: Sequence[Diagnostic]) -> str:
    at: dict[int, list[Diagnostic]] = {}
    for diagnostic in diagnostics:
        at.setdefault(diagnostic.line, []).append(diagnostic)
    rows = []
    for number, line in enumerate(text.splitlines() or [""], 1):
        notes = "".join(
            f'<small class="{"fail" if each.severity == "error" else "warn"}">{escape(each.message)}</small>'
            for each in at.get(number, ())
        )
        rows.append(f'<tr id="line-{number}"><th>{number}</th><td class="value">{escape(line)}{notes}</td></tr>')
    return f'<table class="source"><tbody>{"".join(rows)}</tbody></table>'
