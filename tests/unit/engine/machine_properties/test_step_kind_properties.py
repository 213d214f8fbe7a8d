"""Random sagas with checks, two-phase commit and automatic compensation; and mutations of the machine's part in them.

Most steps of these sagas are made from the ordinary random ones, which must satisfy the same rules.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from sagas.builtins.automatic import RESTORE
from sagas.builtins.two_phase import COMMIT, ROLLBACK
from sagas.definition.model import (
    CHECK_SUFFIX,
    Compensation,
    Definition,
    Operation,
    Retry,
    StepDefinition,
    checked_entry,
    is_nested,
)
from sagas.machine import calls, commit, forward, retries
from sagas.machine.internal_events import ConfirmEntry
from sagas.machine.locking import locks, row_locks
from sagas.machine.undo import rollback
from sagas.protocol.messages import Call, CallEnded, Command, MachineEvent, ReleaseLocks, StartSaga
from sagas.protocol.outcomes import ROW_LOCKED
from tests.helpers.sampling import scaled
from tests.unit.engine.machine_properties.environment.effects import Effect
from tests.unit.engine.machine_properties.environment.environment import Fate
from tests.unit.engine.machine_properties.environment.sql_database import SqlDatabase
from tests.unit.engine.machine_properties.inputs import definition_faults
from tests.unit.engine.machine_properties.inputs.choice_sequence import ChoiceSequence
from tests.unit.engine.machine_properties.inputs.scenarios import RandomScenario
from tests.unit.engine.machine_properties.inputs.strategies import HOME, make_case
from tests.unit.engine.machine_properties.oracle.ledger import Violation, step_id
from tests.unit.engine.machine_properties.rules.state_rules import FINAL
from tests.unit.engine.machine_properties.runner import Runner
from tests.unit.engine.machine_properties.seeds import broken_rules, valid_runs

RUNS = scaled(170, 5_000)


KINDS = ("check", "two-phase", "automatic")


def with_step_kinds(definition: Definition, source: random.Random, kinds: Sequence[str] = KINDS) -> Definition:
    """The saga with two-phase and automatically compensated steps, and with checks before them."""
    effects = ("as before", *(kind for kind in kinds if kind != "check"))
    steps, checks = list(definition.steps), list[StepDefinition]()
    for at, step in enumerate(steps):
        if step.kind == "compensatable" and not is_nested(step):
            steps[at] = _with_kind(step, source.choice(effects))
        if step.kind != "read" and "check" in kinds and source.random() < 0.4:
            checks.append(_check_of(step, source))
    ids = tuple(check.id for check in checks)
    steps = [step if step.needs else replace(step, needs=ids) for step in steps]
    return replace(definition, steps=(*checks, *steps))


def _with_kind(step: StepDefinition, kind: str) -> StepDefinition:
    """A step as the builder makes it: the engine brings `compensate` and `confirm`."""
    if kind == "as before":
        return step
    do = replace(
        step.do,
        connection=HOME,
        local=True,
        idempotent=True,
        task_queue=None,
        two_phase=kind == "two-phase",
        images=kind == "automatic",
    )
    step = replace(step, do=do, probe=None, guarantee="guarded")
    other = Operation("", with_={}, connection=HOME, rejects=False, retry=Retry(max_attempts=2))
    if kind == "automatic":
        restore = Compensation((replace(other, uses=RESTORE),))
        return replace(step, compensate=restore, confirm=None, on_failure="compensate")
    rollback = Compensation((replace(other, uses=ROLLBACK, two_phase=True),))
    return replace(step, compensate=rollback, confirm=replace(other, uses=COMMIT, two_phase=True))


def _check_of(step: StepDefinition, source: random.Random) -> StepDefinition:
    retry = Retry(max_attempts=source.choice((2, 3)))
    return StepDefinition(
        id=step.id + CHECK_SUFFIX,
        name=f"check {step.name}",
        kind="read",
        do=Operation(f"check.{step.id}", with_={"n": "${{ input.n }}"}, retry=retry),
        if_=step.if_,
        for_each=step.for_each,
        max_parallel=step.max_parallel,
    )


def rows_of(definition: Definition, ancestors: Mapping[str, frozenset[str]]) -> dict[str, str]:
    """The row that each step changes. Steps share a row only if one follows the other."""
    rows: dict[str, str] = {}
    for step in definition.steps:
        shared = [id for id, row in rows.items() if row == "shared"]
        ordered = step.for_each is None and all(id in ancestors[step.id] for id in shared)
        if step.do.images:
            rows[step.id] = "shared" if ordered else step.id
    return rows


class KindScenario(RandomScenario):
    """Participants refuse some of the checks; a rollback, a commit and a restoration are never refused by business."""

    def fate(self, call: Call, attempt: int) -> Fate:
        if checked_entry(call.entry) is not None and self.faults.chance(6 if attempt == 1 else 60):
            return self.faults.pick(("rejected", "lost_before", "lost_after"))
        if call.op == "do" and self.faults.chance(6):
            return "rejected"
        if call.op == "do" and call.guard is not None and call.guard.two_phase and self.faults.chance(20):
            return self.faults.pick(("lost_after", "zombie"))
        fate = super().fate(call, attempt)
        refused = call.action in (ROLLBACK, COMMIT, RESTORE) and fate in ("rejected", "failed", "failed_final")
        return "infrastructure" if refused else fate


class KindRunner(Runner):
    """Besides all others, the rules of checks, of prepared transactions, and of rows restored automatically."""

    def __init__(self, definition: Definition, *given: Any, source: random.Random, **more: Any) -> None:
        super().__init__(definition, *given, **more)
        self.source = source
        ledger = self.oracle.ledger
        rows = rows_of(definition, ledger.ancestors)
        self.database = SqlDatabase(HOME, step=self.env.step, chance=self._dies, row_of=rows)
        self.env.databases[HOME] = self.database
        self.env.on_effect = self._effect
        self.checks = {step.id for step in definition.steps if checked_entry(step.id) is not None}
        self.refused: set[str] = set()
        self.locked_since: dict[str, float] = {}
        self.outside: dict[str, str] = {}

    def _dies(self, percent: int) -> bool:
        return self.source.random() * 100 < percent

    def _effect(self, effect: Effect) -> None:
        self.oracle.effect(effect)
        step, ledger = self.env.step(effect.entry), self.oracle.ledger
        if step.do.two_phase and effect.kind == "confirm" and not ledger.committed:
            raise Violation("two_phase", f"{effect.entry} is visible before the decision")
        if step.do.two_phase:
            self.seen.add({"do": "prepared", "undo": "rolled back", "confirm": "committed"}[effect.kind])
        if step.do.images and effect.kind == "undo" and not effect.by_hand:
            self.seen.add("restored")

    # --- the other users of the rows ------------------------------------------------------------------------------

    def _one(self) -> None:
        rows = sorted(
            {self.database.row_name(e["id"]) for e in self.story["steps"] if e["step"] in self.database.row_of}
        )
        if rows and self.source.random() < 0.3:
            self._somebody(self.source.choice(rows))
        super()._one()

    def _somebody(self, row: str) -> None:
        """Another saga locks a row, changes it and releases it, or somebody without any lock changes it."""
        base, number = self.database, str(self.events)
        if row in base.others:
            if self.source.random() < 0.1:
                base.others.discard(row)
        elif row not in base.ours:
            base.others.add(row)
            self._write(row, f"another {number}")
        elif self.source.random() < 0.3:
            self._write(row, f"somebody {number}")

    def _write(self, row: str, value: str) -> None:
        base = self.database
        base.table[row] = value
        if any(base.row_name(entry) == row for entry, _ in base.images):
            base.changed.add(row)
        else:
            self.outside[row] = value

    def _decide(self, items: Sequence[Mapping[str, Any]]) -> None:
        """Before any decision somebody puts back what the saga has written, for a retry can not help otherwise."""
        base = self.database
        for (entry, _), (_, after) in base.images.items():
            if base.row_name(entry) in base.changed:
                base.table[base.row_name(entry)] = after
        base.changed.clear()
        super()._decide(items)

    # --- the rules ------------------------------------------------------------------------------------------------

    def feed(self, event: MachineEvent) -> None:
        call = self.oracle.ledger.calls.get(event.id) if isinstance(event, CallEnded) else None
        if call is not None and isinstance(event, CallEnded):
            self._before_end(call, event)
        super().feed(event)
        if call is not None and isinstance(event, CallEnded):
            self._after_end(call, event)

    def _before_end(self, call: Call, event: CallEnded) -> None:
        outcome, entry = event.outcome, call.entry
        if entry.partition("#")[0] in self.checks and outcome.kind == "rejected":
            self.refused.add(entry)
        row_locked = outcome.failure is not None and outcome.failure.type == ROW_LOCKED
        if call.op == "do" and row_locked:
            self.locked_since.setdefault(entry, event.at)
            self.oracle.ledger.causes.append("rejected")  # what the machine makes of it after a while
        elif call.op == "do" and entry in self.locked_since:
            del self.locked_since[entry]
            self.seen.add("row was free later")

    def _after_end(self, call: Call, event: CallEnded) -> None:
        ledger, entry, row = self.oracle.ledger, call.entry, self.oracle.ledger.entry(call.entry)
        since = self.locked_since.get(entry)
        if since is not None and ledger.story["phase"] == "forward" and call.op == "do" and not ledger.decided(entry):
            over = event.at - since >= row_locks.DEFAULT_WAIT
            if row["outcome"] == "rejected" or row["state"] != "RUNNING":
                raise Violation("RowLocked", f"{entry} is {row['state']} after {event.at - since:g} s")
            if over:
                raise Violation("RowLocked", f"{entry} still waits after {event.at - since:g} s")
        if since is not None and row["outcome"] == "rejected":
            self.seen.add("row locked in vain")
            if event.at - since < row_locks.DEFAULT_WAIT:
                raise Violation("RowLocked", f"{entry} is rejected after {event.at - since:g} s")
        if call.action == RESTORE and event.outcome.park_reason is not None:
            self.seen.add("row changed since")
            parked = any(item["step"] == entry and item["op"] == "undo" for item in ledger.story["parked"])
            if not parked and not ledger.decided(entry):
                raise Violation("compensate: auto", f"{entry} is not restored, and not parked")

    def _carry_out(self, command: Command) -> None:
        ledger = self.oracle.ledger
        match command:
            case Call(op="do") | StartSaga() if step_id(command.entry) not in self.checks:
                rows = [row for row in ledger.story["steps"] if row["step"] in self.checks]
                passed = [row for row in rows if row["state"] in ("DONE", "SKIPPED") or ledger.decided(row["id"])]
                refused = [entry for entry in self.refused if not ledger.decided(entry)]
                if refused or len(passed) < len(rows) or {row["step"] for row in rows} != self.checks:
                    raise Violation("check", f"{command.id} starts, but {refused or self.checks} have not all passed")
            case Call(op="do"):
                if command.retry.max_attempts != ledger.step(command.entry).do.retry.max_attempts:
                    raise Violation("check", f"{command.id} may try {command.retry.max_attempts} times")
            case ReleaseLocks():
                if ledger.story["state"] not in FINAL:
                    raise Violation("compensate: auto", f"rows are released in state {ledger.story['state']}")
                self.database.ours.clear()
            case _:
                pass
        super()._carry_out(command)

    def check_end(self) -> None:
        base, state = self.database, self.story["state"]
        decided = {decision.step for decision in self.oracle.ledger.decisions}
        while self.env.zombies:
            self.env.commit_zombie(0)
        if undecided := sorted(entry for entry, _ in base.prepared if entry not in decided):
            raise Violation("two_phase", f"{state}, but {undecided} are still prepared")
        super().check_end()
        if base.ours and not decided:  # an attempt that an operator did not await may end later
            raise Violation("compensate: auto", f"{state}, but {sorted(base.ours)} are still locked")
        if state == "COMPENSATED" and not decided:
            wrong = {row for row, value in base.table.items() if value != self.outside.get(row, "")}
            if wrong:
                raise Violation("compensate: auto", f"{sorted(wrong)} are not as before: {base.table}")
        if not decided:
            self._check_checks()

    def _check_checks(self) -> None:
        """A check that is not passed ends the saga before anything has run, and the reason names its step."""
        rows, reason = self.story["steps"], self.story["reason"] or {}
        failed = [
            row for row in rows if row["step"] in self.checks and row["state"] in ("REJECTED", "FAILED", "UNKNOWN")
        ]
        if not failed and not self.refused:
            stepped = step_id(reason.get("step") or "") + CHECK_SUFFIX in self.checks
            if stepped and reason["kind"] == "rejected":
                self.seen.add("refused after its check")
            return
        started = [row["id"] for row in rows if row["step"] not in self.checks and row["state"] != "PENDING"]
        if self.story["state"] != "COMPENSATED" or started or self.oracle.ledger.log.effects:
            raise Violation("check", f"{self.story['state']} although {self.refused} was rejected; {started} ran")
        causes = {row["outcome"] for row in failed if checked_entry(row["id"]) == reason["step"]}
        if reason["kind"] not in {*causes, "cancelled", "deadline", "definition"}:
            raise Violation("check", f"the reason is {reason}, not {[row['id'] for row in failed]}")
        self.seen.add(f"check {reason['kind']}")


def simulate(seed: int, kinds: Sequence[str] = KINDS) -> KindRunner | None:
    """One whole run; raises Violation when a rule is broken. None: its saga has none of these steps."""
    source = random.Random(seed)
    case = make_case(ChoiceSequence(source.randbytes(160)))
    definition = with_step_kinds(case.definition, source, kinds)
    if definition.recovery == "forward" or definition.steps == case.definition.steps:
        return None
    scenario = KindScenario(ChoiceSequence(source.randbytes(192)), ChoiceSequence(source.randbytes(384)))
    runner = KindRunner(
        definition,
        case.input,
        scenario,
        source=source,
        generation=case.generation,
        repaired=definition_faults.repaired(definition),
    )
    runner.run()
    return runner


def test_every_run_with_these_steps_satisfies_every_rule() -> None:
    seen: Counter[str] = Counter()
    for runner in valid_runs(simulate, range(RUNS)):
        seen.update(runner.seen)
    assert min(seen[name] for name in MUST_BE_SEEN) >= RUNS // 250, {name: seen[name] for name in MUST_BE_SEEN}


MUST_BE_SEEN = (
    "check rejected", "check unknown", "refused after its check", "prepared", "rolled back", "committed", "restored",
    "row changed since", "row was free later", "row locked in vain",
)  # fmt: skip


def _one_check_is_enough(patch: pytest.MonkeyPatch) -> None:
    whole = forward._settle_step

    def settle(run: Any, record: Any) -> None:
        if checked_entry(record.id) is not None:
            for dependant in run.plan.dependants[record.id]:
                run.steps[dependant].needs_open = min(run.steps[dependant].needs_open, 1)
        whole(run, record)

    patch.setattr(forward, "_settle_step", settle)


def _a_refused_check_passes(patch: pytest.MonkeyPatch) -> None:
    whole = forward.attempt_ended

    def ended(run: Any, entry: Any, outcome: Any, attempts: Any) -> None:
        refused = checked_entry(entry.id) is not None and outcome.kind == "rejected"
        whole(run, entry, replace(outcome, kind="done", failure=None) if refused else outcome, attempts)

    patch.setattr(forward, "attempt_ended", ended)


def _a_check_is_tried_once(patch: pytest.MonkeyPatch) -> None:
    whole = retries.call_retry
    patch.setattr(
        retries,
        "call_retry",
        lambda step, made: replace(whole(step, made), max_attempts=1) if checked_entry(step.id) else whole(step, made),
    )


def _the_ordinary_guard(patch: pytest.MonkeyPatch) -> None:
    whole = calls.build_call

    def build(run: Any, entry: Any, flight: Any) -> Call:
        return whole(run, entry, flight) if flight.call_kind == "do" else calls._build_call(run, entry, flight)

    patch.setattr(calls, "build_call", build)


def _commit_without_a_decision(patch: pytest.MonkeyPatch) -> None:
    whole = forward.mark_done

    def done(run: Any, entry: Any, result: object) -> None:
        whole(run, entry, result)
        if run.step(entry).do.two_phase and run.phase == "forward":
            run.post(ConfirmEntry(entry))

    patch.setattr(forward, "mark_done", done)


def _leave_unknown_ones(patch: pytest.MonkeyPatch) -> None:
    whole = rollback.needs_compensation

    def needs(run: Any, entry: Any) -> bool:
        return whole(run, entry) and not (run.step(entry).do.two_phase and entry.outcome == "unknown")

    patch.setattr(rollback, "needs_compensation", needs)


def _a_changed_row_counts_as_restored(patch: pytest.MonkeyPatch) -> None:
    whole = rollback.undo_ended

    def ended(run: Any, entry: Any, outcome: Any, attempts: Any, **more: Any) -> None:
        refused = run.step(entry).do.images and outcome.park_reason is not None
        whole(run, entry, replace(outcome, kind="done", park_reason=None) if refused else outcome, attempts, **more)

    patch.setattr(rollback, "undo_ended", ended)


def _rows_stay_locked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(locks, "release_at_end", lambda run: None)


def _rows_are_released_early(patch: pytest.MonkeyPatch) -> None:
    whole = commit.reach_commit_point

    def reach(run: Any) -> None:
        whole(run)
        locks.release_at_end(run)

    patch.setattr(commit, "reach_commit_point", reach)


def _wait_without_limit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(row_locks, "maximum_wait", lambda run: 1e9)


def _do_not_wait(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(row_locks, "maximum_wait", lambda run: 0.0)


MUTATIONS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str, str]] = {
    "the first check starts the steps": (_one_check_is_enough, "check", "check"),
    "a rejected check passes": (_a_refused_check_passes, "check", "check"),
    "a check is tried once": (_a_check_is_tried_once, "check", "check"),
    "undo and confirm by the ordinary guard": (_the_ordinary_guard, "two-phase", "two_phase"),
    "a commit before the decision": (_commit_without_a_decision, "two-phase", "rule 13"),
    "an unknown attempt is not rolled back": (_leave_unknown_ones, "two-phase", "two_phase"),
    "a changed row counts as restored": (_a_changed_row_counts_as_restored, "automatic", "compensate: auto"),
    "rows stay locked": (_rows_stay_locked, "automatic", "compensate: auto"),
    "rows are released at the commit point": (_rows_are_released_early, "automatic", "compensate: auto"),
    "an endless wait for a row": (_wait_without_limit, "automatic", "RowLocked"),
    "no wait for a row": (_do_not_wait, "automatic", "RowLocked"),
}
"""What is taken out of the machine, the steps that need it, and the rule that must be found broken."""


@pytest.mark.sampled(keep=4)
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_of_these_steps_is_detected(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate, kind, rule = MUTATIONS[name]
    mutate(monkeypatch)
    others: Counter[str] = Counter()
    for broken in broken_rules(lambda seed: simulate(seed, (kind,)), range(1_000)):
        if broken == rule:
            return
        others[broken] += 1
    raise AssertionError(f"the oracle found no violation of {rule}, only {others}")
