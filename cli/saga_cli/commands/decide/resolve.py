"""`saga resolve`: an operator's decision about a parked step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saga_cli.context import load_settings, target_line, with_locator
from saga_cli.output import confirm, echo, print_document, warn
from saga_cli.shared_options import (
    Operator,
    Yes,
    json_object,
    json_option,
    operator_name,
    print_target,
    required_reason,
)
from saga_cli.wait import noting_silence
from sagas.errors import RefusedError, SagaError, UsageError
from sagas.protocol.payloads import LOCK_ACTIVITY, NOTIFICATION_PREFIX, RELEASE_ACTIVITY
from sagas.text.shell import saga_command

if TYPE_CHECKING:
    from saga_workers.location.locator import Locator
    from saga_workers.views.parked import ParkedRow
    from sagas.actions.registry import Actions
    from sagas.settings import Settings

DECISIONS = ("retry", "done", "skip", "compensate")

_REASON_IS_RECORDED = "a decision is recorded with its reason"
_SKIPPED_LOCKS = {RELEASE_ACTIVITY: "leaves its locks", LOCK_ACTIVITY: "undoes it without its locks"}


@dataclass(frozen=True, slots=True)
class DecisionFilter:
    """The parked operations that a decision with ``--where`` is about. ``step`` also stands for all its items."""

    step: str
    where: str
    op: str | None
    error: str | None

    def matches(self, operation: ParkedRow) -> bool:
        return (
            self.step in (operation.step, operation.definition_step)
            and self.op in (None, operation.op)
            and (self.error is None or self.error in operation.error)
        )


_MAX_UNPROVEN = 5


def resolve(
    words: Annotated[
        list[str],
        typer.Argument(metavar="ID STEP DECISION", help="with --where only STEP DECISION; see `saga parked`"),
    ],
    reason: Annotated[str | None, typer.Option(help="reason; recorded with the saga")] = None,
    with_: Annotated[str | None, typer.Option("--with", help="with retry: new arguments, JSON or @file")] = None,
    definition: Annotated[
        Path | None, typer.Option(help="continue with this corrected definition of the same steps")
    ] = None,
    result: Annotated[str | None, typer.Option(help="with done: the result of the step, JSON or @file")] = None,
    evidence: Annotated[
        str | None, typer.Option(help="how you know that the effect exists, or that it does not")
    ] = None,
    where: Annotated[str | None, typer.Option(help="all parked sagas that match this Temporal list filter")] = None,
    op: Annotated[str | None, typer.Option(help="with --where: only do, undo or confirm")] = None,
    error: Annotated[str | None, typer.Option(help="with --where: only where the error contains this text")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show the consequences and change nothing")] = False,
    as_: Operator = None,
    yes: Yes = False,
) -> int:
    """Decide about a parked step: retry, done, skip or compensate. `saga show ID` lists the possible decisions.

    A notification that was not delivered can be sent again with retry, and closed with skip.

    \b
    saga resolve ID STEP retry --reason TEXT [--with JSON] [--definition FILE]
    saga resolve ID STEP done --reason TEXT [--result JSON] [--evidence TEXT]
    saga resolve --where QUERY STEP skip --reason TEXT

    With --where all matching steps are resolved, and the exit code is the highest of all.
    """
    from sagas.machine.decisions.form import misplaced_field

    saga_id, step, decision = _parse_words(words, where)
    if where is None and (op or error):
        raise UsageError("--op and --error need --where")
    made: dict[str, Any] = {
        "step": step,
        "decision": decision,
        # Nothing is recorded of a preview.
        "reason": reason or "a preview" if dry_run else required_reason(reason, _REASON_IS_RECORDED),
        "who": operator_name(as_),
        "with": json_object(with_, "--with"),
        "definition": None if definition is None else _definition_snapshot(definition),
        "result": json_option(result, "--result"),
        "evidence": evidence,
    }
    given = [field for field, value in made.items() if value is not None]
    if (problem := misplaced_field(decision, given)) is not None:
        raise UsageError(f"--{problem}")
    if where is None:
        assert saga_id is not None
        return _resolve_one(saga_id, made, dry_run, yes)
    return _resolve_many(DecisionFilter(step, where, op, error), made, dry_run, yes)


def _parse_words(words: Sequence[str], where: str | None) -> tuple[str | None, str, str]:
    if len(words) != (3 if where is None else 2):
        what = "ID STEP DECISION" if where is None else "STEP DECISION together with --where"
        raise UsageError(f"give {what}", help="saga parked    prints the complete command")
    *saga_id, step, decision = words
    if decision not in DECISIONS:
        from sagas.errors import did_you_mean

        raise UsageError(
            f"there is no decision {decision}{did_you_mean(decision, DECISIONS)}", help=", ".join(DECISIONS)
        )
    return (saga_id[0] if saga_id else None), step, decision


def _definition_snapshot(file: Path) -> dict[str, Any]:
    """The definition in a file, as a run carries it. Raises UsageError: it cannot be read, or has errors."""
    from saga_cli.inputs import read_definition
    from sagas.definition.snapshot import to_snapshot
    from sagas.project import Project

    return to_snapshot(read_definition(file, Project(load_settings())))


def _resolve_one(saga_id: str, fields: dict[str, Any], dry_run: bool, yes: bool) -> int:
    async def preview(locator: Locator, settings: Settings) -> list[str]:
        from saga_workers.interventions import preview_decision

        decision = {**fields, "who": fields["who"] or locator.temporal.identity}
        async with noting_silence("question", "its effects are shown only if one answers"):
            await _check_answer(locator, settings, saga_id, decision)
            return await preview_decision(locator, saga_id, decision)

    async def run(locator: Locator, settings: Settings) -> dict[str, Any]:
        from saga_workers.decision_checks import decision_keys
        from saga_workers.interventions import resolve

        decision = {**fields, "who": fields["who"] or locator.temporal.identity}
        await _check_answer(locator, settings, saga_id, decision)
        print_target(settings)
        keys, web_ui = decision_keys(settings, decision), settings.temporal.web_ui
        async with noting_silence("decision"):
            view = await resolve(locator, saga_id, decision, keys, web_ui=web_ui)
        return {**view.to_json(), "id": saga_id}

    if dry_run:
        consequences = with_locator(preview)
        document = {"id": saga_id, "dry_run": True, "next": consequences}
        print_document(document, human=lambda: _print_preview(saga_id, fields, consequences))
        return 0
    if fields["decision"] == "skip":
        warn(target_line(load_settings()))
        if not yes:
            with_locator(preview)  # nobody should confirm what will be refused
        remains = _SKIPPED_LOCKS.get(fields["step"], "may leave a residue (RESIDUE)")
        if fields["step"].startswith(NOTIFICATION_PREFIX):
            remains = "closes it undelivered"
        confirm(f"skipping {fields['step']} of {saga_id} {remains}", yes=yes)
    if fields["with"] is not None:
        for note in _correction_notes(with_locator(preview)):
            warn(note)
    answer = with_locator(run)

    def human() -> None:
        echo(f"{saga_id}: {fields['decision']} {fields['step']} accepted; the saga is {answer['state']}")
        echo(f"follow it with `{saga_command('watch', saga_id)}`")

    print_document(answer, human=human)
    return 0


def _correction_notes(effects: Sequence[str]) -> list[str]:
    """The consequences of a decision that say which operations will not follow its `--with`."""
    from sagas.machine.corrections import NOT_FOLLOWED

    return sorted({effect for effect in effects if NOT_FOLLOWED in effect})


def _unproven(effects: Sequence[str]) -> list[str]:
    """The first consequences that rest on the word of the operator alone."""
    from sagas.presentation.unproven_effects import COUNTS_AS_ABSENT

    lines = [effect for effect in effects if COUNTS_AS_ABSENT in effect]
    return lines[:_MAX_UNPROVEN] + ([f"and {len(lines) - _MAX_UNPROVEN} more"] if len(lines) > _MAX_UNPROVEN else [])


async def _check_answer(locator: Locator, settings: Settings, saga_id: str, decision: dict[str, Any]) -> None:
    """Raises UsageError if the step's action does not take, or return, what the decision gives."""
    from saga_workers.decision_checks import check_answer

    def load_actions() -> Actions:
        from sagas.project import Project

        return Project(settings).actions

    if (note := await check_answer(locator, saga_id, decision, load_actions)) is not None:
        warn(note)


def _print_preview(saga_id: str, fields: dict[str, Any], effects: Sequence[str]) -> None:
    echo(f"{saga_id}: {fields['decision']} {fields['step']} is possible; this follows:")
    for effect in effects or ["only the state of the step changes"]:
        echo(f"  {effect}")
    echo("nothing was changed")


def _resolve_many(decision_filter: DecisionFilter, fields: dict[str, Any], dry_run: bool, yes: bool) -> int:
    async def find(locator: Locator, settings: Settings) -> list[ParkedRow]:
        from saga_cli.shared_options import saga_filter
        from saga_workers.views.parked import read_parked

        parked_list = await read_parked(locator, saga_filter(settings, where=decision_filter.where))
        return [operation for operation in parked_list.operations if decision_filter.matches(operation)]

    parked = with_locator(find)
    if not parked:
        print_document([], human=lambda: echo("no parked step matches"))
        return 0
    from saga_workers.decision_checks import decision_keys
    from saga_workers.interventions import preview_decision, resolve
    from saga_workers.many_requests import ask_each, worst_code

    async def preview_all(locator: Locator, settings: Settings) -> list[dict[str, Any] | SagaError]:
        async def preview(operation: ParkedRow) -> dict[str, Any]:
            decision = {**fields, "step": operation.step, "who": fields["who"] or locator.temporal.identity}
            await _check_answer(locator, settings, operation.saga_id, decision)
            return {"next": await preview_decision(locator, operation.saga_id, decision)}

        return await ask_each(parked, preview, saga_of=lambda operation: operation.saga_id)

    async def decide_all(locator: Locator, settings: Settings) -> list[dict[str, Any] | SagaError]:
        async def decide(operation: ParkedRow) -> dict[str, Any]:
            decision = {**fields, "step": operation.step, "who": fields["who"] or locator.temporal.identity}
            await _check_answer(locator, settings, operation.saga_id, decision)
            await resolve(locator, operation.saga_id, decision, decision_keys(settings, decision))
            return {}

        return await ask_each(parked, decide, saga_of=lambda operation: operation.saga_id)

    answers = with_locator(preview_all) if dry_run or not yes or fields["with"] is not None else []
    if not dry_run and (yes or not all(isinstance(answer, SagaError) for answer in answers)):
        warn(target_line(load_settings()))
        several = ", ".join(f"{operation.saga_id} {operation.step}" for operation in parked[:5]) + (
            " …" if len(parked) > 5 else ""
        )
        refused = sum(isinstance(answer, SagaError) for answer in answers)
        but = f", {refused} of which will be refused" if refused else ""
        effects = [effect for answer in answers if isinstance(answer, dict) for effect in answer["next"]]
        for note in (*_correction_notes(effects), *_unproven(effects)):
            warn(note)
        confirm(f"`{fields['decision']}` for {len(parked)} parked steps{but}: {several}", yes=yes)
        answers = with_locator(decide_all)
    rows = [
        {"id": operation.saga_id, "step": operation.step}
        | (
            {"accepted": False, "refusal": answer.message}
            if isinstance(answer, SagaError)
            else {**answer, "accepted": True}
        )
        for operation, answer in zip(parked, answers, strict=True)
    ]

    def human() -> None:
        for row, answer in zip(rows, answers, strict=True):
            if isinstance(answer, SagaError):
                what = f"{'refused' if isinstance(answer, RefusedError) else 'failed'}: {answer.message}"
            else:
                what = "; ".join(answer.get("next") or ()) or "accepted"
            echo(f"{row['id']} {row['step']}: {what}")
        if dry_run:
            echo("nothing was changed")

    print_document(rows, human=human)
    return worst_code(answers)
