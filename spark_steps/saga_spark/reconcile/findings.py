"""The kinds of mismatch: what each means, whether `--repair` fixes it, and the command that does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from types import MappingProxyType
from typing import Any

from saga_activities.messaging.outbox import PUBLISHED
from sagas.settings.reconcile import EffectTable
from sagas.text.exact_json import number_text
from sagas.text.printable import MASK, printable_line
from sagas.text.shell import saga_command


@dataclass(frozen=True, slots=True)
class MismatchKind:
    """``title`` is a heading, ``meaning`` a sentence for operators. ``repairable``: `--repair` fixes it."""

    title: str
    meaning: str
    repairable: bool = False


MISMATCH_KINDS: Mapping[str, MismatchKind] = {
    "effect_without_saga": MismatchKind("effect without saga", "An effect exists, and no saga claims it."),
    "effects_unmatched": MismatchKind(
        "declaration that matches no row",
        "Not one row of the table belongs to its step or saga as `[[reconcile.effects]]` says: correct the declaration"
        " before you change a row.",
    ),
    "saga_without_effect": MismatchKind(
        "saga without effect",
        "A saga has ended and says that a step is done, but the effect of the step does not exist.",
    ),
    "effect_not_undone": MismatchKind(
        "compensated, but the effect is still there", "A saga has compensated a step, but its effect still exists."
    ),
    "effect_applied_twice": MismatchKind("effect applied twice", "The effect of one step exists more than once."),
    "open_effects": MismatchKind(
        "terminated run with open effects",
        "A run was terminated in Temporal, so nothing was undone and its effects remain.",
        repairable=True,
    ),
    "run_missing": MismatchKind(
        "saga without a run",
        "Temporal has no run of a saga any more, and its effects are open, or it holds locks, events or transactions.",
    ),
    "run_replaced": MismatchKind(
        "effects of a replaced run",
        "Another run has the id of a saga, and no run of the saga will end its effects.",
    ),
    "run_unreadable": MismatchKind(
        "effects of a saga whose id a run has that cannot be read",
        "Nobody can say here whether that run will end the open effects: reconcile where the key of its input is.",
    ),
    "undo_missing": MismatchKind(
        "undo without a run",
        "A completed saga was being undone, and Temporal has no run of the undo any more: `saga undo` finishes it.",
    ),
    "staged_left": MismatchKind(
        "staged data of a finished saga", "A saga has ended, and its staged output was never removed.", repairable=True
    ),
    "published_unclaimed": MismatchKind(
        "published data nobody claims",
        "Rows are published with the commit tag of a saga, but no output record names them as published.",
    ),
    "published_partly": MismatchKind(
        "outputs that are published in part",
        "Readers see some outputs of `publish: together` and not the others: the catalog commits table by table.",
    ),
    "reservation_unowned": MismatchKind(
        "reservation nobody owns", "A reservation exists for a saga that has ended or never existed."
    ),
    "amounts_differ": MismatchKind(
        "amounts that differ", "A row has another amount than the result of the step that wrote it."
    ),
    "prepared_unowned": MismatchKind(
        "prepared transaction that no saga owns",
        "A prepared transaction holds its locks, and no open saga will commit it or roll it back.",
    ),
    "committed_outside": MismatchKind(
        "transaction that its saga did not commit",
        "The prepared transaction of a step was committed by somebody else, before its saga had decided.",
    ),
    "late_reply": MismatchKind(
        "command that is done, contrary to the end of its saga",
        "A saga has ended without undoing a command, and its participant has replied that it is done: undo it there.",
    ),
    "event_without_effect": MismatchKind(
        "event without effect", "An event is in the outbox, but the step that writes it was never done."
    ),
    "event_held": MismatchKind(
        "held event of a finished saga",
        "A saga has ended, and an event that waited for its outcome is still held.",
        repairable=True,
    ),
    "lock_left": MismatchKind(
        "lock of a saga that is over",
        "A saga is closed or unknown, and holds locks or waits for them.",
        repairable=True,
    ),
    "event_missing": MismatchKind(
        "published event that is not in its topic",
        "The outbox says that an event is published, but consumers of its topic do not see it.",
    ),
    "event_hidden": MismatchKind(
        "published event that cannot be read yet",
        "An event is in its topic behind an open transaction, so nobody knows yet whether consumers will see it.",
    ),
    "event_published_twice": MismatchKind(
        "event published twice", "Consumers of a topic see one event more than once."
    ),
    "ledger_differs": MismatchKind(
        "saga that the ledger does not have",
        "A saga has ended or is parked, and the ledger has no row of it, or has it in another state.",
        repairable=True,
    ),
    "claim_left": MismatchKind(
        "saga of a closed bulk workflow",
        "A bulk workflow was closed by Temporal before this saga had ended, so its effects are open.",
        repairable=True,
    ),
    "event_unclaimed": MismatchKind(
        "event that nobody published", "An event is in a topic, but the outbox that it names has not published it."
    ),
}


RESUMED = ("run_missing", "run_replaced", "undo_missing")
"""The kinds that :func:`resume_command` ends. Nothing else of such a saga may be repaired before."""


def count_text(count: int) -> str:
    """A count with its noun."""
    return f"{count:,} difference{'' if count == 1 else 's'}"


EXPECTED_PREFIX = "expected."
"""Prefix of the name of a column that differs in the details: its value according to the step's result."""


DECLARATION = "declaration"
"""The detail that has the name of the `[[reconcile.effects]]` that the row was compared by."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One mismatch. ``place`` is a connection, ``connection.table`` or a sink, ``row`` the key of a row in it."""

    kind: str
    saga_id: str | None = None
    saga: str | None = None
    state: str | None = None
    step: str | None = None
    generation: int | None = None
    place: str | None = None
    row: Mapping[str, Any] | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"class": self.kind, **{name: value for name, value in asdict(self).items() if name != "kind"}}


def resume_command(kind: str, saga_id: str) -> str:
    """The command that continues a saga without a run, or its undo, under the same keys."""
    if kind == "undo_missing":
        return saga_command("undo", saga_id, reason="its undo was interrupted")
    return saga_command("resume", saga_id)


def repair_command(
    finding: Finding,
    dialects: Mapping[str, str],
    effects: Mapping[str, EffectTable] = MappingProxyType({}),
    *,
    can_undo: bool = False,
) -> str:
    """The command that repairs the mismatch, or shows an operator what to decide. SQL is preceded by its connection.

    ``dialects`` has SQLAlchemy's dialect name for each connection, ``effects`` the declarations by their names.
    """
    saga = finding.saga_id or ""
    if finding.kind in RESUMED or (finding.kind == "published_partly" and finding.state == "TERMINATED"):
        return resume_command(finding.kind, saga)
    if finding.kind == "event_missing":
        connection, _, table = (finding.place or "").partition(".")
        event = sql_literal((finding.row or {}).get("event_id"), dialects[connection])
        return f"{connection}: update {table} set status = 'NEW' where event_id = {event};"
    if finding.kind == "event_hidden":
        return saga_command("doctor")
    if finding.kind == "prepared_unowned":
        return f"{finding.place}: {finding.details['rollback']};"
    already_published = finding.kind == "event_without_effect" and finding.details.get("status") == PUBLISHED
    # Records in a topic cannot be repaired.
    if already_published or finding.kind in ("event_published_twice", "event_unclaimed"):
        return saga_command("show", saga) if saga else saga_command("relay", status=True)
    if MISMATCH_KINDS[finding.kind].repairable:
        return saga_command("reconcile", saga, repair=True)
    if finding.row and finding.place and "." in finding.place and finding.kind != "saga_without_effect":
        return _sql_command(finding, dialects[finding.place.partition(".")[0]], effects)
    # The row of a declared table may only have changed, and an undo would then book it back a second time.
    if finding.kind == "saga_without_effect" and can_undo and DECLARATION not in finding.details:
        return saga_command("undo", saga, reason=f"the effect of {finding.step or 'a step'} is missing")
    unowned = finding.kind == "effect_without_saga" and finding.state in (None, "UNKNOWN")
    # No command undoes the effect of a saga that has ended backward: its row in the guard tells which effect it is.
    connection = (finding.place or "").partition(", ")[0]  # a step may have been made in several databases
    if unowned or (finding.kind == "effect_not_undone" and connection in dialects):
        dialect = dialects[connection]
        where = f"saga_id = {sql_literal(finding.saga_id, dialect)} and step = {sql_literal(finding.step, dialect)}"
        return f"{connection}: select * from saga_guard where {where};"
    return saga_command("show", saga)


def _sql_command(finding: Finding, dialect: str, effects: Mapping[str, EffectTable]) -> str:
    connection, _, table = str(finding.place).partition(".")
    where = row_condition(finding, dialect, effects)
    if finding.kind == "amounts_differ" and (changes := _changes(finding, dialect)):
        return f"{connection}: update {table} set {changes} where {where};"
    if finding.kind in ("amounts_differ", "effect_applied_twice", "effects_unmatched"):
        return select_command(finding, dialect, effects)
    return f"{connection}: delete from {table} where {where};"


def row_condition(finding: Finding, dialect: str, effects: Mapping[str, EffectTable], *, step: bool = False) -> str:
    """The row of the finding in SQL: its key, what binds it to its step, and which rows count. ``step``: all rows that
    are bound to the step."""
    declared = effects.get(str(finding.details.get(DECLARATION)))
    key = {} if step and declared is not None else dict(finding.row or {})
    conditions = [_equals(name, value, dialect) for name, value in key.items()]
    if declared is not None and declared.expression not in key:
        expression = declared.expression if declared.expression.isidentifier() else f"({declared.expression})"
        conditions.append(_equals(expression, finding.details.get("bound"), dialect))
    if declared is not None and declared.where:
        conditions.append(f"({declared.where})")
    return " and ".join(conditions)


def select_command(finding: Finding, dialect: str, effects: Mapping[str, EffectTable]) -> str:
    """The command that shows the rows of the finding: all of its step, or one if the declaration matches none."""
    connection, _, table = str(finding.place).partition(".")
    where = row_condition(finding, dialect, effects, step=finding.kind != "effects_unmatched")
    return f"{connection}: select * from {table} where {where};"


def _equals(expression: str, value: Any, dialect: str) -> str:
    if value is None:
        return f"{expression} is null"
    # PostgreSQL reads a text as a value of the column's type; a literal with a point would be compared as another one.
    is_typed = dialect == "postgresql" and isinstance(value, float | Decimal)
    return f"{expression} = {sql_literal(number_text(value) if is_typed else value, dialect)}"


def _changes(finding: Finding, dialect: str) -> str:
    """The columns that differ with the values that they should have; empty if one row is not all that differs, or a
    value is private.

    The numbers are text, which becomes the type of its column without passing through one that rounds.
    """
    if (finding.details.get("rows"), finding.details.get("steps_done")) != (1, 1):
        return ""  # a sum is expected of several rows
    expected = {
        name.removeprefix(EXPECTED_PREFIX): value
        for name, value in finding.details.items()
        if name.startswith(EXPECTED_PREFIX)
    }
    if MASK in expected.values():
        return ""
    return ", ".join(f"{name} = {sql_literal(str(value), dialect)}" for name, value in expected.items())


def sql_literal(value: Any, dialect: str) -> str:
    """A value as an SQL literal that keeps its meaning when an operator copies it from a terminal into a session.

    Text with a backslash, or with a character that is printed as an escape, is written so that neither a mode of the
    server (NO_BACKSLASH_ESCAPES, standard_conforming_strings) nor the terminal changes it. ``dialect`` is SQLAlchemy's
    dialect name.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float | Decimal):
        return number_text(value)
    text = str(value)
    quoted = text.replace("'", "''")
    if "\\" not in text and printable_line(text) == text:
        return f"'{quoted}'"
    if dialect == "postgresql":
        characters = quoted.replace("\\", "\\\\")
        return (
            "e'"
            + "".join(
                character if printable_line(character) == character else f"\\U{ord(character):08x}"
                for character in characters
            )
            + "'"
        )
    encoded = text.encode("utf-8", "surrogatepass").hex()
    # An introducer keeps it a literal, which takes the collation of the column that it is compared with.
    return f"_utf8mb4 x'{encoded}'" if dialect in ("mysql", "mariadb") else f"cast(x'{encoded}' as text)"
