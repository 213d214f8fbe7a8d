"""The checks of `saga participant test`: what a participant promises about an idempotency key.

Each check is a short conversation under a key of its own. A :class:`Trial` sends its requests as a saga would and
records them; the check judges the outcomes. Without a count of effects a second effect shows only if its response
differs from the first one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from saga_workers.participant.trial import RETRY_DELAY, BrokenPromise, NotTestable, Trial, describe
from sagas.protocol.outcomes import Outcome

NOT_REMEMBERED = "remembers_rejections: false"

Verdict = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class PromiseResult:
    """The result of one check of a participant. ``steps`` are the requests in their order, each with the response.

    ``problem``: why the check has failed or was skipped; None if it has passed. ``proposal``: the setting that fits
    what was observed, as it is written at the step; None: the defaults fit.
    """

    check: str
    promise: str
    verdict: Verdict
    steps: Sequence[tuple[str, str]]
    problem: str | None = None
    proposal: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "check": self.check,
            "promise": self.promise,
            "verdict": self.verdict,
            "steps": [{"sent": sent, "seen": seen} for sent, seen in self.steps],
            "problem": self.problem,
            "proposal": self.proposal,
        }


async def _same_key_twice(trial: Trial) -> None:
    first = await trial.first()
    _expect_same(first, await trial.again(), "the second request")
    await trial.expect_effects(1, of_done=True)


async def _same_key_other_arguments(trial: Trial) -> None:
    first = await trial.first()
    other = await trial.with_other_arguments()
    if other.kind == "done" and other.result != first.result:
        raise BrokenPromise("the participant did the key once more, with other arguments")
    if other.kind == "rejected" and (status := _status(other)):
        raise BrokenPromise(
            f"it rejected other arguments ({status}) after it had done the key: that says that nothing has happened; "
            "answer with a status that is not in `rejected`, such as 400"
        )
    if other.kind != "done" and not _is_refusal(other):
        raise BrokenPromise(f"the participant neither refused nor repeated its first response: {describe(other)}")
    _expect_same(first, await trial.again(), "the first request, sent again after that,")
    await trial.expect_effects(1)


async def _undo_before_do(trial: Trial) -> None:
    _expect_done(await trial.undo(None), "the undo of a key that never arrived")
    late = await trial.again()
    if late.kind == "done":
        raise BrokenPromise("the request that arrived after its undo was done", _refusing_body(late))
    _expect_refusal(late, "the request that arrived after its undo")
    await trial.expect_effects(0)


async def _do_after_undo(trial: Trial) -> None:
    first = await trial.first()
    _expect_done(await trial.undo(first), "the undo")
    late = await trial.again()
    if late.kind == "done" and late.result != first.result:
        what = "a delayed duplicate of the request was done once more after the undo"
        raise BrokenPromise(what, _refusing_body(late))
    if late.kind != "done":
        _expect_refusal(late, "the delayed duplicate after the undo")
    await trial.expect_effects(0)


async def _undo_twice(trial: Trial) -> None:
    first = await trial.first()
    undone = await trial.undo(first)
    _expect_done(undone, "the undo")
    _expect_same(undone, await trial.undo(first), "the second undo")
    await trial.expect_effects(0)


async def _confirm_after_undo(trial: Trial) -> None:
    first = await trial.first()
    _expect_done(await trial.undo(first), "the undo")
    confirmed = await trial.confirm(first)
    if confirmed.kind == "done":
        raise BrokenPromise("it confirmed what was undone")
    _expect_refusal(confirmed, "the confirm after the undo")
    await trial.expect_effects(0)


async def _confirm_twice(trial: Trial) -> None:
    first = await trial.first()
    confirmed = await trial.confirm(first)
    _expect_done(confirmed, "the confirm")
    _expect_same(confirmed, await trial.confirm(first), "the second confirm")
    await trial.expect_effects(1)


async def _remembered_rejection(trial: Trial) -> None:
    _expect_refusal(await trial.to_be_rejected(), "the request that must be rejected")
    _expect_refusal(await trial.to_be_rejected(), "the same request, sent again,")
    later = await trial.again()
    if later.kind == "done":
        raise BrokenPromise("a key that was rejected was done later", NOT_REMEMBERED)
    if "undo" in trial.operations:
        _expect_done(await trial.undo(None), "the undo of a key that was rejected")
    await trial.expect_effects(0)


async def _in_progress(trial: Trial) -> None:
    await trial.cut_off(0.0)
    meanwhile = await trial.again()
    if meanwhile.kind == "rejected":
        await asyncio.sleep(RETRY_DELAY)
        if (await trial.again()).kind == "done":
            raise BrokenPromise("it rejected the key while it carried the first request out", NOT_REMEMBERED)


async def _concurrent_duplicates(trial: Trial) -> None:
    outcomes = await trial.duplicates()
    done = [outcome for outcome in outcomes if outcome.kind == "done"]
    if len(done) < len(outcomes):
        done.append(await trial.again())
    if any(outcome.kind == "rejected" for outcome in outcomes) and done[-1].kind == "done":
        raise BrokenPromise("it rejected duplicates of a request that it did", NOT_REMEMBERED)
    for duplicate in done:
        _expect_same(done[0], duplicate, "a duplicate")
    await trial.expect_effects(1)


async def _response_cut_off(trial: Trial) -> None:
    await trial.cut_off()
    _expect_done(await trial.again(), "the request, sent again after its response was lost,")
    await trial.expect_effects(1)


@dataclass(frozen=True, slots=True)
class PromiseCheck:
    """One check. ``needs`` are the operations of the step that it sends besides the forward request."""

    name: str
    promise: str
    run: Callable[[Trial], Awaitable[None]]
    needs: frozenset[str] = frozenset()


CHECKS = (
    PromiseCheck(
        "same key twice", "a key that comes again gets the same response and has no second effect", _same_key_twice
    ),
    PromiseCheck(
        "same key, other arguments",
        "a key that comes with other arguments is refused, but not rejected, or gets the first response",
        _same_key_other_arguments,
    ),
    PromiseCheck(
        "undo before do",
        "the undo of a key that never arrived is done, and the request that arrives later is rejected",
        _undo_before_do,
        frozenset({"undo"}),
    ),
    PromiseCheck(
        "do after undo",
        "a request that arrives again after its undo is rejected, or gets the first response without an effect",
        _do_after_undo,
        frozenset({"undo"}),
    ),
    PromiseCheck(
        "undo twice",
        "an undo that comes again gets the same response and changes nothing",
        _undo_twice,
        frozenset({"undo"}),
    ),
    PromiseCheck(
        "confirm after undo",
        "what was undone is never confirmed",
        _confirm_after_undo,
        frozenset({"undo", "confirm"}),
    ),
    PromiseCheck(
        "confirm twice",
        "a confirm that comes again gets the same response and changes nothing",
        _confirm_twice,
        frozenset({"undo", "confirm"}),
    ),
    PromiseCheck(
        "remembered rejection",
        "a key that was rejected has no effect later, and its undo is done",
        _remembered_rejection,
    ),
    PromiseCheck(
        "in progress",
        "a key that comes again while its first request is carried out is not rejected",
        _in_progress,
    ),
    PromiseCheck(
        "concurrent duplicates",
        "duplicates that arrive at once have one effect, and none of them is rejected",
        _concurrent_duplicates,
    ),
    PromiseCheck(
        "response cut off",
        "a request whose connection broke has its effect once, and is answered when it is sent again",
        _response_cut_off,
    ),
)


async def run_check(check: PromiseCheck, trial: Trial, operations: frozenset[str]) -> PromiseResult:
    """Run one check; ``operations`` are those that the step has besides the forward one.

    Raises SagaError if the participant does not do what every check begins with, or does it without an effect.
    """
    verdict: Verdict = "passed"
    problem: str | None = None
    proposal: str | None = None
    trial.operations = operations
    try:
        missing = sorted(check.needs - operations)
        if missing:
            raise NotTestable(f"there is no {' and no '.join(missing)}")
        await trial.begin()
        await check.run(trial)
    except NotTestable as reason:
        verdict, problem = "skipped", str(reason)
    except BrokenPromise as broken:
        verdict, problem, proposal = "failed", str(broken), broken.proposal
    try:
        await trial.clean_up()
    except BrokenPromise as broken:
        verdict, problem = "failed", problem or str(broken)
    return PromiseResult(check.name, check.promise, verdict, tuple(trial.steps), problem, proposal)


def with_proposals(results: Sequence[PromiseResult], *, definite: bool) -> list[PromiseResult]:
    """The results with the settings that follow from several of them. ``definite``: a reply is, as over Kafka."""
    verdicts = {result.check: result.verdict for result in results}
    remembers = not definite and verdicts["remembered rejection"] == "passed"
    remembers = remembers and all(verdicts[name] == "passed" for name in ("in progress", "concurrent duplicates"))
    keeps_keys = all(verdicts[name] != "failed" for name in ("same key twice", "response cut off"))
    fitting = {
        "remembered rejection": "remembers_rejections: true" if remembers else None,
        "same key twice": None if keeps_keys else "idempotent: false",
    }
    return [replace(result, proposal=result.proposal or fitting.get(result.check)) for result in results]


def _expect_done(outcome: Outcome, what: str) -> None:
    if outcome.kind != "done":
        raise BrokenPromise(f"{what} was not done: {describe(outcome)}")


def _expect_same(first: Outcome, later: Outcome, what: str) -> None:
    _expect_done(later, what)
    if later.result != first.result:
        raise BrokenPromise(f"{what} had another result than the first one")


def _expect_refusal(outcome: Outcome, what: str) -> None:
    if outcome.kind == "rejected" or _is_failed_reply(outcome):
        return
    status = _status(outcome)
    proposal = f"rejected: [{status}]" if 400 < status < 500 else None
    raise BrokenPromise(f"{what} was not rejected: {describe(outcome)}", proposal or _refusing_body(outcome))


def _refusing_body(outcome: Outcome) -> str | None:
    """The setting for a service that refuses inside a response that says 200; None if it does not look like that."""
    body = outcome.result if outcome.kind == "done" else None
    if isinstance(body, Mapping):
        for name in ("error", "errors"):
            if body.get(name):
                return f'rejected_when: "has(response.json.{name})"'
        for name in ("ok", "success", "accepted"):
            if body.get(name) is False:
                return f'rejected_when: "has(response.json.{name}) && !response.json.{name}"'
    return None


def _is_refusal(outcome: Outcome) -> bool:
    """True if the participant says that it did nothing: a rejection, or any status of a client's mistake."""
    return outcome.kind == "rejected" or _is_failed_reply(outcome) or 400 <= _status(outcome) < 500


def _status(outcome: Outcome) -> int:
    """The HTTP status of a response that was not done; 0 for a reply over Kafka, and without a response."""
    status = outcome.failure.details.get("status") if outcome.failure is not None else None
    return status if isinstance(status, int) else 0


def _is_failed_reply(outcome: Outcome) -> bool:
    """True for a reply `failed` to a command: like a rejection, it holds for the key for good."""
    return outcome.kind == "failed" and outcome.failure is not None and outcome.failure.type == "Failed"
