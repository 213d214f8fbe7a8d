"""Diagnostics of definitions: their codes, positions, messages and output formats."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Format = Literal["text", "json", "github", "sarif"]


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding. ``line`` and ``column`` count from 1; ``code`` is a key of :data:`DIAGNOSTIC_CODES`."""

    file: str
    line: int
    column: int
    code: str
    severity: Severity
    message: str
    help: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "file": self.file,
            "line": self.line,
            "column": self.column,
            "code": self.code,
            "severity": self.severity,
            "message": self.message,
            "help": self.help,
        }

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column} {self.code} {self.severity} {self.message}"


class Positioned(Protocol):
    """Anything with a position in the file."""

    @property
    def line(self) -> int: ...

    @property
    def column(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Position:
    """A position without a node."""

    line: int
    column: int


class Report:
    """Collects the diagnostics of one file. Identical findings at the same position are kept once."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._diagnostics: dict[tuple[int, int, str, str], Diagnostic] = {}

    def add(self, code: str, position: Positioned, message: str, help: str | None = None) -> None:
        """Record a finding. ``help`` defaults to the help of the code."""
        entry = DIAGNOSTIC_CODES[code]
        diagnostic = Diagnostic(
            self.file,
            position.line,
            position.column,
            code,
            entry.severity,
            message,
            entry.help if help is None else help,
        )
        self._diagnostics.setdefault((position.line, position.column, code, message), diagnostic)

    @property
    def failed(self) -> bool:
        """True if at least one finding is an error."""
        return any(diagnostic.severity == "error" for diagnostic in self._diagnostics.values())

    @property
    def diagnostics(self) -> list[Diagnostic]:
        """All findings in file order."""
        return sorted(self._diagnostics.values(), key=lambda d: (d.line, d.column, d.code))


def suggestion_help(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """A help text that proposes the closest known name; ``otherwise`` if none is close."""
    close = difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.6)
    return f"Did you mean `{close[0]}`?" if close else otherwise


def with_warnings_as_errors(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """The same findings with every warning changed to an error (`--strict`)."""
    return [Diagnostic(d.file, d.line, d.column, d.code, "error", d.message, d.help) for d in diagnostics]


# Diagnostic codes. The meaning of a code never changes.

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class DiagnosticCode:
    """A diagnostic code: ``title`` names the mistake, ``help`` says how to correct it."""

    severity: Severity
    title: str
    help: str


def _error(title: str, help: str) -> DiagnosticCode:
    return DiagnosticCode("error", title, help)


def _warning(title: str, help: str) -> DiagnosticCode:
    return DiagnosticCode("warning", title, help)


DIAGNOSTIC_CODES: dict[str, DiagnosticCode] = {
    # SAGA1xx: the structure of the file
    "SAGA100": _error("The file is not readable YAML", "Correct the YAML at this place."),
    "SAGA101": _error(
        "An expression has to be quoted",
        'Put the whole value in quotes: "${{ … }}". YAML gives `: `, `{`, `}` and ` #` a meaning of its own.',
    ),
    "SAGA102": _error("The same key twice", "Remove one of them; YAML would silently keep only one."),
    "SAGA103": _warning(
        "A rejection could come after the pivot",
        "After the pivot nothing leads backward, so a rejection parks the saga. Move the step before the pivot, "
        "declare the action with rejects=False, or say `on_failure: park` or `continue`.",
    ),
    "SAGA104": _error("Unknown field", "Remove it, or start its name with `x-` to keep it for yourself."),
    "SAGA105": _error("A required field is missing", "Add the field."),
    "SAGA106": _error("A field has the wrong type or value", "Write the value as described."),
    "SAGA107": _error("A name is not allowed", "Choose another name."),
    "SAGA108": _error("Two steps have the same id", "Give every step an id of its own."),
    "SAGA109": _error("Not a duration", "Write a number with a unit: 500ms, 90s, 10m, 2h or 7d."),
    "SAGA110": _error("The file cannot be read", "Check the path, the permissions and that the file is UTF-8 text."),
    "SAGA111": _error("Two definitions have the same name", "Rename one of the two sagas."),
    "SAGA112": _error("`input` is not a JSON Schema", "Write a JSON Schema (2020-12) at this place."),
    "SAGA113": _error("Fields that exclude each other", "Keep one of the two."),
    "SAGA114": _error(
        "`heartbeat` is not shorter than `timeout`",
        "A beat must be able to be missed before the attempt times out: make `heartbeat` shorter.",
    ),
    "SAGA115": _error(
        "`deadline` with `recovery: forward`",
        "A deadline leads backward, and this saga only goes forward. Use `warn_after` to be told when it is late.",
    ),
    "SAGA116": _error("`execution: local` is not possible here", "Remove it; the step then runs as a normal activity."),
    "SAGA117": _error(
        "A sensitive value in a label or an id",
        "Labels and ids are plain text in Temporal and in logs: use a value that is not `x-sensitive`.",
    ),
    "SAGA118": _warning("A field that has no effect here", "Remove it."),
    "SAGA130": _error(
        "A trigger sends a signal that no `wait` takes", "Name the `signal` of a `wait` step of this saga."
    ),
    "SAGA131": _error(
        "A trigger with `signal` does not say which saga it wakes",
        'Add `id`, for example id: "${{ trigger.headers.sagaid }}".',
    ),
    "SAGA132": _error("The input of a trigger does not fit `input`", "Write an input that the schema allows."),
    "SAGA140": _error(
        "An action that cannot notify anybody",
        "Use `http`, `kafka.publish`, `outbox.emit`, `sql`, or an action of your own.",
    ),
    "SAGA141": _warning("A moment that never comes", "Remove it from `when`."),
    # SAGA2xx: the graph and the kinds of the steps
    "SAGA201": _error("`needs` names no step", "Name the id of a step of this saga."),
    "SAGA202": _error("Steps need each other in a circle", "Remove one of the `needs`."),
    "SAGA203": _error("More than one pivot", "A saga has one point of no return: keep `pivot: true` on one step."),
    "SAGA204": _error("A field that a pivot cannot have", "Remove it, or move it to another step."),
    "SAGA205": _error(
        "An effect before the commit point without `compensate`",
        "Say how to undo it with `compensate`, make it the pivot with `pivot: true`, or say `effect: none` "
        "if it only reads.",
    ),
    "SAGA206": _error(
        "`compensate` on a retriable step",
        "After the commit point nothing is undone: remove `compensate`, or move the step before the pivot.",
    ),
    "SAGA207": _error(
        "`effect: none` on a step with an effect",
        "A read has nothing to undo, to confirm or to decide: remove one of the two.",
    ),
    "SAGA208": _error(
        "`on_failure: compensate` after the commit point",
        "Nothing leads backward there. Leave it out to retry without limit, or say `park` or `continue`.",
    ),
    "SAGA209": _error(
        "A step with an effect runs parallel to the pivot",
        "Nobody could say whether it has to be undone: put it before the pivot, or let it need the pivot.",
    ),
    "SAGA210": _error(
        "A limit of attempts that cannot count",
        "After the commit point retries have no limit. Remove it, or say `on_failure: park` or `continue`.",
    ),
    "SAGA211": _error(
        "A nested saga that cannot be undone before the commit point",
        "Make it the pivot, put it after the pivot, or give the step a `compensate` of its own.",
    ),
    "SAGA212": _error("A field that goes backward in a saga with `recovery: forward`", "Remove it."),
    "SAGA213": _error("A nested saga that is not defined", "Name a saga of this project."),
    "SAGA220": _warning(
        "An unguarded pivot without `probe`",
        "If an attempt times out nobody can tell whether it took effect, and the saga parks. Add a `probe`.",
    ),
    "SAGA221": _warning(
        "An unguarded step without `probe` or idempotency",
        "An unknown attempt is never repeated and is undone blindly. Add a `probe`, or use an idempotency key.",
    ),
    "SAGA222": _warning(
        "A probe that can never answer",
        "Say what its answer means with `done` and `absent`, or let the action return Done(result), Absent or Unknown.",
    ),
    "SAGA230": _warning(
        "A `timeout` of one second or less",
        "Temporal's Web UI flags it: a short pause of the worker would fail the attempt. Give it more time.",
    ),
    "SAGA231": _warning(
        "`max_attempts: 1`",
        "Temporal's Web UI flags it: one lost connection ends the step. Allow at least two attempts.",
    ),
    "SAGA232": _warning(
        "`give_up_after` leaves no room for a second attempt",
        "Temporal's Web UI flags it: make it at least twice the `timeout`.",
    ),
    "SAGA233": _warning(
        "`heartbeat` is nearly as long as `timeout`",
        "Temporal's Web UI flags it: keep `heartbeat` below four fifths of the `timeout`.",
    ),
    # SAGA3xx: expressions
    "SAGA301": _error("An expression does not parse", "Expressions are CEL, see https://cel.dev."),
    "SAGA302": _error(
        "An expression names something unknown",
        "Known names: input, steps.<id>, item and index (with for_each), saga, step.key, step.forward_key, vars.",
    ),
    "SAGA303": _error(
        "A reference to a step that is not an ancestor",
        "Its result is not there yet: add it to `needs`, or move the step below it.",
    ),
    "SAGA304": _error("Arithmetic on strings", "Make an exact number of it first: decimal(x)."),
    "SAGA305": _warning(
        "A result that may be null is used bare",
        "Say what to use instead: default(steps.x.result, …), or test it: steps.x.result != null ? … : ….",
    ),
    "SAGA306": _error(
        "`for_each` over something that is no list",
        "Declare the input as `type: array`, or write an expression that gives a list.",
    ),
    "SAGA307": _warning(
        "A compensation or a confirm looks for the effect under its own key",
        "Write step.forward_key, the key of the forward call: there `step.key` ends in `/undo` or `/confirm`.",
    ),
    # SAGA4xx: actions and their arguments
    "SAGA401": _error("Unknown action", "Run `saga actions` for the known ones."),
    "SAGA402": _error("A required argument is missing", "Add it under `with`."),
    "SAGA403": _error("Unknown argument", "Remove it, or add it to the action's signature."),
    "SAGA404": _error("An argument has the wrong type", "Write a value of the type the action takes."),
    "SAGA405": _error("Unknown or unsuitable connection", "Name a connection of saga.toml of the right kind."),
    "SAGA406": _error(
        "A statement that a guarded step refuses",
        "Write one query or one change of rows per statement; several statements are a list under `run`. The guard "
        "begins and ends the transaction, and a migration tool changes the schema.",
    ),
    "SAGA407": _error(
        "A field that a Spark step brings itself",
        "Remove it: the engine publishes after the commit point, and discards or takes back when going backward.",
    ),
    "SAGA408": _error(
        "A Spark step is incomplete or says two things at once",
        "Give it one `job` or `sql`, one `output` or `outputs`, one source per input and one place per output.",
    ),
    "SAGA409": _error(
        "A sink that cannot do this",
        "Choose a mode that the sink has, or another sink; what each one can do is in docs/how-to/spark-jobs.md.",
    ),
    "SAGA410": _error(
        "A Spark step without a ledger",
        'Name the SQL connection that keeps its guard and fence rows: [spark] ledger = "…" in saga.toml.',
    ),
    "SAGA411": _error("Unknown catalog", "Name a catalog of saga.toml."),
    "SAGA412": _error(
        "No database for events to Kafka",
        'Name the SQL connection whose outbox keeps them until they are published: [kafka] outbox = "…" in saga.toml.',
    ),
    "SAGA413": _error("`hold` has to be literal", "Write `hold: true` or `hold: false`."),
    "SAGA414": _error(
        "`outbox.drop` or `outbox.release` where nothing is held",
        "`outbox.drop` stands under `compensate`, `outbox.release` under `confirm`, of a step whose events say "
        "`hold: true` before the commit point.",
    ),
    "SAGA415": _error("`reply_topic` has to be literal", "Write the name of the topic."),
    "SAGA416": _error(
        "A header that the engine writes itself",
        "Give it a name that begins neither with `saga` nor with `ce_`, and is not `content-type`.",
    ),
    # SAGA9xx: planned features
    "SAGA900": _error("Not in this version", "Leave it out for now."),
}


# Output formats: text, JSON, GitHub annotations and SARIF

SARIF_VERSION = "2.1.0"


def format_diagnostics(diagnostics: Sequence[Diagnostic], format: Format = "text") -> str:
    """All findings in a format of `saga validate --format`."""
    return _FORMATS[format](diagnostics)


def _as_text(diagnostics: Sequence[Diagnostic]) -> str:
    lines = []
    for diagnostic in diagnostics:
        lines.append(str(diagnostic))
        if diagnostic.help:
            lines.append(f"    {diagnostic.help}")
    return "\n".join(lines)


def _as_json(diagnostics: Sequence[Diagnostic]) -> str:
    return json.dumps([diagnostic.to_json() for diagnostic in diagnostics], ensure_ascii=False, indent=2)


def _as_github(diagnostics: Sequence[Diagnostic]) -> str:
    return "\n".join(
        f"::{one.severity} file={_escaped_property(one.file)},line={one.line},col={one.column},title={one.code}::"
        + _escaped_data(f"{one.message}\n{one.help}".strip())
        for one in diagnostics
    )


def _escaped_data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escaped_property(text: str) -> str:
    return _escaped_data(text).replace(":", "%3A").replace(",", "%2C")


def _as_sarif(diagnostics: Sequence[Diagnostic]) -> str:
    codes = sorted({one.code for one in diagnostics})
    rules = [
        {
            "id": code,
            "shortDescription": {"text": DIAGNOSTIC_CODES[code].title},
            "help": {"text": DIAGNOSTIC_CODES[code].help},
            "defaultConfiguration": {"level": DIAGNOSTIC_CODES[code].severity},
        }
        for code in codes
    ]
    document = {
        "version": SARIF_VERSION,
        "runs": [
            {
                "tool": {"driver": {"name": "saga validate", "rules": rules}},
                "columnKind": "unicodeCodePoints",
                "results": [_sarif_result(one, codes.index(one.code)) for one in diagnostics],
            }
        ],
    }
    return json.dumps(document, ensure_ascii=False, indent=2)


def _sarif_result(one: Diagnostic, rule: int) -> dict[str, Any]:
    return {
        "ruleId": one.code,
        "ruleIndex": rule,
        "level": one.severity,
        "message": {"text": f"{one.message}. {one.help}".strip()},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": one.file.replace("\\", "/")},
                    "region": {"startLine": one.line, "startColumn": one.column},
                }
            }
        ],
    }


_FORMATS: dict[str, Callable[[Sequence[Diagnostic]], str]] = {
    "text": _as_text,
    "json": _as_json,
    "github": _as_github,
    "sarif": _as_sarif,
}
