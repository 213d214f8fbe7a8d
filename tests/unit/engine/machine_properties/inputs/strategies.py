"""Random sagas of one to eight steps of every kind, valid in the language, built from a choice sequence.

An exhausted sequence gives one guarded compensatable step; shrinking therefore ends at the smallest saga that fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sagas.definition.model import (
    Compensation,
    Definition,
    Guarantee,
    Milestone,
    Notification,
    OnFailure,
    Operation,
    Probe,
    Retry,
    Savepoint,
    StepDefinition,
    StepKind,
)
from tests.unit.engine.machine_properties.inputs.choice_sequence import ChoiceSequence
from tests.unit.engine.machine_properties.inputs.definition_faults import LOST, repaired

DEADLINE = 7_777.0
"""Seconds; unlike any other duration here, so that the oracle recognises the deadline's timer."""

WAIT = 40.0
"""Seconds that a `wait` waits for its signal."""

BEGINNING = 1_800_000_000.0
"""When every random saga starts, seconds since the epoch; 2027-01-15T08:00:00Z."""

UNTIL = "2027-01-15T08:00:30Z"
"""What some of them wait for."""

MOMENTS: tuple[Milestone, ...] = ("completed", "compensated", "parked", "residue", "overdue")
NAMES = "abcdefgh"
HOME, OTHER = "shop", "bank"


@dataclass(frozen=True, slots=True)
class Case:
    """A saga to run and what to run it with."""

    definition: Definition
    input: Mapping[str, Any]
    generation: int
    repaired: Definition


def make_case(choices: ChoiceSequence, *, savepoints: ChoiceSequence | None = None) -> Case:
    """One saga with its input; with ``savepoints`` it has some of these, where they are possible."""
    return _Maker(choices).case(savepoints)


def operation(uses: str, connection: str | None = HOME, **changes: Any) -> Operation:
    """An action with short patience; ``connection`` None: unguarded."""
    changes.setdefault("retry", Retry(max_attempts=2))
    return Operation(uses=uses, connection=connection, **changes)


def guarantee_of(do: Operation) -> Guarantee:
    if do.guarded:
        return "guarded"
    return "participant-keyed" if do.idempotent else "at-least-once"


class _Maker:
    def __init__(self, choices: ChoiceSequence) -> None:
        self.choices = choices
        self.input: dict[str, Any] = {"n": 7, "child": "child"}
        self.steps: list[StepDefinition] = []
        self.mistakes = 0

    def case(self, savepoints: ChoiceSequence | None) -> Case:
        choices = self.choices
        count = choices.pick((1, 2, 3, 4, 2, 3, 5, 6, 7, 8))
        shape = choices.pick(("no pivot", "pivot", "pivot", "no pivot", "forward"))
        pivot_at = choices.below(count) if shape == "pivot" else None
        self.mistakes = choices.pick((0, 0, 12, 25))
        for at in range(count):
            self.steps.append(self._step(at, shape, pivot_at))
        definition = Definition(
            saga="random",
            steps=tuple(self.steps),
            output={"n": self._expression("input.n")},
            deadline=None if shape == "forward" else choices.pick((None, DEADLINE)),
            warn_after=choices.pick((None, None, 55.0)),
            recovery="forward" if shape == "forward" else "backward",
            digest="sha256:random",
        )
        generation = choices.pick((1, 1, 1, 3))
        # Last, so that a choice sequence gives the same saga with and without them.
        definition = replace(definition, notify=self._notify())
        self.steps = [self._without_call(at, shape, pivot_at) for at in range(count)]
        self.steps = [self._always(step) for step in self.steps]
        definition = replace(definition, steps=tuple(self.steps))
        if savepoints is not None and shape != "forward":
            definition = replace(definition, steps=self._with_savepoints(savepoints, pivot_at))
        return Case(definition, self.input, generation, repaired(definition))

    def _without_call(self, at: int, shape: str, pivot_at: int | None) -> StepDefinition:
        """The step; some requirements become a `pass`, also one that can be undone, or a `finish`."""
        step, choices = self.steps[at], self.choices
        if step.do.uses != "require":
            return step
        uses = choices.pick(("require", "pass", "finish", "pass", "finish"))
        early = shape != "forward" and (pivot_at is None or at < pivot_at)
        if uses == "pass":
            do = Operation(uses="pass", with_={"result": {"n": self._expression("input.n")}})
            if not early or not choices.chance(60):
                return replace(step, do=do)
            return replace(step, kind="compensatable", do=do, compensate=self._compensation(step.id, do, False, False))
        above = self._ancestors()
        alone = all(
            other.id in above[step.id] or step.id in above[other.id] or other.kind == "read" for other in self.steps
        )
        if uses != "finish" or not alone or (pivot_at is not None and at > pivot_at):
            return step
        when = (step.do.with_ or {})["that"]
        return replace(step, do=Operation(uses="finish", with_={"when": when, "output": {"by": step.id}}))

    def _always(self, step: StepDefinition) -> StepDefinition:
        """The step; some compensations run whatever became of it."""
        if step.compensate is None or step.do.uses == "saga" or not self.choices.chance(20):
            return step
        return replace(step, compensate=replace(step.compensate, always=True))

    def _ancestors(self) -> dict[str, set[str]]:
        above: dict[str, set[str]] = {}
        for step in self.steps:
            above[step.id] = set(step.needs).union(*(above[need] for need in step.needs))
        return above

    def _with_savepoints(self, choices: ChoiceSequence, pivot_at: int | None) -> tuple[StepDefinition, ...]:
        """Savepoints on some of the steps that have no parallel one, before the pivot, and others after them."""
        above = self._ancestors()
        steps = list(self.steps)
        for at, step in enumerate(steps[:-1] if pivot_at is None else steps[:pivot_at]):
            alone = all(other == step.id or other in above[step.id] or step.id in above[other] for other in above)
            if alone and choices.chance(70):
                savepoint = Savepoint(choices.pick((2, 3)), choices.pick((0.0, 0.0, 30.0)))
                steps[at] = replace(step, savepoint=savepoint)
        return tuple(steps)

    def _notify(self) -> tuple[Notification, ...]:
        choices, made = self.choices, []
        for _ in range(choices.pick((1, 0, 2))):
            when: tuple[Milestone, ...] = tuple(moment for moment in MOMENTS if not choices.chance(30)) or MOMENTS[:1]
            last = f"${{{{ [steps.{self.steps[-1].id}.state, steps.{self.steps[-1].id}.result] }}}}"
            with_ = choices.pick(({"event": "${{ event }}"}, {"n": last}, {"n": f"${{{{ {LOST}n }}}}"}))
            place = choices.pick((None, HOME))
            made.append(Notification(when, operation("tell", place, with_=with_), choices.pick(((1.0,), (0.0, 5.0)))))
        return tuple(made)

    def _expression(self, source: str) -> str:
        """An expression over the input, sometimes with a mistake in it."""
        if self.mistakes and self.choices.chance(self.mistakes):
            source = source.replace("input.", LOST)
        return f"${{{{ {source} }}}}"

    # --- one step -----------------------------------------------------------------------------------------------

    def _step(self, at: int, shape: str, pivot_at: int | None) -> StepDefinition:
        id = NAMES[at]
        needs = self._needs(at, pivot_at)
        retriable = shape == "forward" or (pivot_at is not None and at > pivot_at)
        if at == pivot_at:
            return self._pivot(id, needs)
        flavour = self.choices.pick(
            ("plain", "plain", "plain", "plain", "each", "saga", "read", "wait", "plain", "each", "wait", "require")
        )
        if flavour in ("read", "wait", "require"):
            return self._read(id, needs, flavour)
        if flavour == "saga":
            return self._nested(id, needs, retriable)
        return self._effect(id, needs, retriable, each=flavour == "each")

    def _needs(self, at: int, pivot_at: int | None) -> tuple[str, ...]:
        """Any earlier steps; all steps before the pivot meet in it, and all later ones come after it."""
        if at == pivot_at:
            return tuple(NAMES[:at])
        beyond = pivot_at is not None and at > pivot_at
        earlier = NAMES[pivot_at if beyond else 0 : at]
        if not self.choices.chance(60):
            return tuple(earlier[-1:])
        chosen = [id for id in earlier if self.choices.chance(40)]
        if beyond and earlier[0] not in chosen:
            chosen.insert(0, earlier[0])
        return tuple(chosen)

    def _arguments(self, needs: tuple[str, ...], each: bool) -> dict[str, Any]:
        with_: dict[str, Any] = {"n": "${{ item }}" if each else self._expression("input.n")}
        for id in needs[-1:]:
            many = any(step.id == id and step.for_each is not None for step in self.steps)
            with_["before"] = f"${{{{ steps.{id}.results }}}}" if many else f"${{{{ steps.{id}.result }}}}"
            if self.mistakes and not many and self.choices.chance(15):
                with_["id"] = f"${{{{ steps.{id}.result.id }}}}"  # fails when that step was left out
        return with_

    def _retry(self) -> Retry:
        return self.choices.pick(
            (Retry(max_attempts=2), Retry(max_attempts=1), Retry(max_attempts=3, intervals=(1.0, 5.0)),
             Retry(max_attempts=2, give_up_after=90.0))
        )  # fmt: skip

    def _do(self, id: str, with_: Mapping[str, Any], *, rejects: bool = True) -> Operation:
        kind = self.choices.pick(("guarded", "guarded", "guarded", "keyed", "keyless", "foreign"))
        retry = self._retry()
        remembers = kind in ("keyed", "foreign") and self.choices.chance(50)
        heartbeat, keyless_abroad = self.choices.pick(((None, False), (None, True), (3.0, False)))
        keyless = kind == "keyless" or (kind == "foreign" and keyless_abroad)
        return Operation(
            uses=f"do.{id}",
            with_=with_,
            retry=retry,
            connection=HOME if kind == "guarded" else None,
            local=kind != "foreign",
            idempotent=not keyless,
            remembers_rejections=remembers and not keyless,
            task_queue="elsewhere" if kind == "foreign" else None,
            heartbeat=heartbeat,
            rejects=rejects,
        )

    def _probe(self, id: str, do: Operation, chance: int) -> Probe | None:
        if do.guarded or not self.choices.chance(chance):
            return None
        choices = self.choices
        seals = do.idempotent and choices.chance(50)
        likely = 40 if self.mistakes else 0
        with_ = choices.pick((None, {"n": f"${{{{ {LOST if likely and choices.chance(likely) else 'input.'}n }}}}"}))
        ask = Operation(uses=f"probe.{id}", with_=with_, seals=seals, retry=Retry(max_attempts=2))
        if not choices.chance(70):
            return Probe(ask)
        own = LOST if likely and choices.chance(likely) else "input."
        return Probe(
            ask,
            done=f'{own}n == 7 ? response.status == "here" : false',
            absent=choices.pick(('response.status == "gone"', 'response.status == "gone"', None)),
            result=choices.pick(("response.value", "response.value", f"{own}n == 7 ? response.value : null", None)),
        )

    def _compensation(self, id: str, do: Operation, confirm: bool, each: bool) -> Compensation:
        alternates: list[Operation] = []
        for n in range(self.choices.pick((1, 1, 1, 2, 3))):
            place = self.choices.pick((HOME, HOME, OTHER, None)) if do.guarded else None
            frozen = each or not self.choices.chance(40)
            with_ = None if frozen else {"mine": f"${{{{ steps.{id}.result }}}}", "why": "${{ saga.reason.kind }}"}
            if self.mistakes and self.choices.chance(self.mistakes):
                # The second fails when the result is unknown.
                with_ = self.choices.pick(({"n": f"${{{{ {LOST}n }}}}"}, {"id": f"${{{{ steps.{id}.result.id }}}}"}))
            alternates.append(
                Operation(uses=f"undo.{id}.{n}", with_=with_, connection=place, retry=Retry(max_attempts=2))
            )
        confirmed = None
        if confirm and self.choices.chance(60):
            # Kept in the step's own database: elsewhere the guard could not choose between the two compensations.
            given = {"n": self._expression("input.n")} if self.mistakes else None
            confirmed = Operation(
                uses=f"undo_confirmed.{id}", with_=given, connection=do.connection, retry=Retry(max_attempts=2)
            )
        if confirmed is not None:
            alternates = [Operation(uses=f"undo.{id}.0", connection=do.connection, retry=Retry(max_attempts=2))]
        return Compensation(tuple(alternates), confirmed)

    def _effect(self, id: str, needs: tuple[str, ...], retriable: bool, *, each: bool) -> StepDefinition:
        choices = self.choices
        do = self._do(id, self._arguments(needs, each))
        with_confirm = choices.chance(30)
        place = choices.pick((HOME, HOME, OTHER, None)) if do.guarded else None
        given = {"n": f"${{{{ {LOST}n }}}}"} if self.mistakes and choices.chance(self.mistakes) else None
        confirm = Operation(uses=f"confirm.{id}", with_=given, connection=place, retry=Retry(max_attempts=2))
        failures: tuple[OnFailure, ...] = ("compensate", "compensate", "compensate", "park", "continue")
        if each:
            self.input[f"items_{id}"] = list(range(choices.pick((2, 3, 1, 0, 4))))
        flag = None if each else self._flag(id)
        return StepDefinition(
            id=id,
            name=f"Step {id}",
            kind="retriable" if retriable else "compensatable",
            do=do,
            needs=needs,
            if_=flag,
            for_each=self._expression(f"input.items_{id}") if each else None,
            max_parallel=choices.pick((1, 2, 3)) if each else 1,
            on_failure=choices.pick(failures),
            compensate=None if retriable else self._compensation(id, do, with_confirm, each),
            confirm=confirm if with_confirm else None,
            probe=self._probe(id, do, 40),
            settle=20.0,
            fairness_key=self._expression("input.n") if self.mistakes and choices.chance(10) else None,
            guarantee=guarantee_of(do),
        )

    def _flag(self, id: str) -> str | None:
        if not self.choices.chance(15):
            return None
        self.input[f"go_{id}"] = self.choices.chance(50)
        return self._expression(f"input.go_{id}")

    def _pivot(self, id: str, needs: tuple[str, ...]) -> StepDefinition:
        do = self._do(id, self._arguments(needs, False))
        on_failure: OnFailure = self.choices.pick(("compensate", "compensate", "park"))
        return StepDefinition(
            id=id,
            name="The point of no return",
            kind="pivot",
            do=do,
            needs=needs,
            on_failure=on_failure,
            probe=self._probe(id, do, 60),
            settle=20.0,
            guarantee=guarantee_of(do),
        )

    def _read(self, id: str, needs: tuple[str, ...], flavour: str) -> StepDefinition:
        choices = self.choices
        if flavour == "wait":
            signal = {"signal": f"go_{id}", "timeout": WAIT}
            with_: dict[str, Any] = choices.pick(
                ({**signal, "on_timeout": "continue"}, {"for": self._expression("input.n")},
                 {**signal, "on_timeout": "reject"}, {**signal, "on_timeout": "park"}, {"signal": f"go_{id}"},
                 {"until": UNTIL})
            )  # fmt: skip
            do = Operation(uses="wait", with_=with_)
        elif flavour == "require":
            that = self._expression(choices.pick(("input.n == 7", "input.n == 8")))
            do = Operation(uses="require", with_={"that": that, "message": "seven"})
        else:
            do = Operation(uses=f"look.{id}", with_=self._arguments(needs, False), retry=self._retry())
        kind: StepKind = "read"
        failures: tuple[OnFailure, ...] = ("compensate", "compensate", "park", "continue")
        on_failure = choices.pick(failures)
        return StepDefinition(
            id=id, name=f"Step {id}", kind=kind, do=do, needs=needs, on_failure=on_failure, guarantee="at-least-once"
        )

    def _nested(self, id: str, needs: tuple[str, ...], retriable: bool) -> StepDefinition:
        compensate = None
        if not retriable and self.choices.chance(30):
            compensate = Compensation((Operation(uses=f"undo.{id}.0", retry=Retry(max_attempts=2)),))
        return StepDefinition(
            id=id,
            name=f"Step {id}",
            kind="retriable" if retriable else "compensatable",
            do=Operation(
                uses="saga", with_={"name": self._expression("input.child"), "input": {"n": "${{ input.n }}"}}
            ),
            needs=needs,
            on_failure=self.choices.pick(("compensate", "compensate", "park", "continue")),
            compensate=compensate,
            guarantee="guarded",
        )
