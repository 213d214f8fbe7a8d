"""The built-in actions without a participant: `require` and `wait`."""

from __future__ import annotations

from sagas.definition import times
from sagas.machine import arguments
from sagas.machine.arguments import DefinitionError
from sagas.machine.state import LedgerEntry, SagaRun
from sagas.protocol.messages import SignalReceived
from sagas.protocol.outcomes import Failure, Outcome

REJECTED_TYPE = "Rejected"
"""The failure type of a rejection; a wait that timed out has another one."""


def evaluate_require(run: SagaRun, entry: LedgerEntry) -> Outcome:
    """`require`: evaluate a condition; false is a rejection."""
    given = _wait_arguments(run, entry)
    value = given.get("that")
    if not isinstance(value, bool):
        raise DefinitionError(f"{entry.id}: `that` is neither true nor false")
    if value:
        return Outcome.done(None)
    return _rejected(str(given.get("message") or "the requirement is not met"))


def start_wait(run: SagaRun, entry: LedgerEntry) -> Outcome | None:
    """`wait`: return the outcome if it is known already, else start a flight and return None."""
    given = _wait_arguments(run, entry)
    name = given.get("signal")
    try:
        if name is not None:
            early = run.signals.get(str(name))
            if early is not None:
                return signal_outcome(early)
            limit = given.get("timeout")
            length = None if limit is None else times.to_seconds(limit)
            summary = f"wait for {name}"
        elif given.get("until") is not None:
            length = max(0.0, times.parse_timestamp(given["until"]) - run.now)
            summary = f"wait until {given['until']}"
        else:
            length = times.to_seconds(given.get("for"))
            summary = f"wait {given.get('for')}"
    except ValueError as error:
        raise DefinitionError(f"{entry.id}: {error}") from None
    run.start_flight(f"{entry.id}~wait", "wait", entry, "do", seconds=length, summary=summary)
    return None


def wait_timer_fired(run: SagaRun, entry: LedgerEntry) -> Outcome:
    """The outcome of a wait whose timer has fired."""
    given = entry.arguments or {}
    if given.get("signal") is None:
        return Outcome.done({"data": None, "by": None, "at": times.format_timestamp(run.now)})
    name, then = given["signal"], given.get("on_timeout", "reject")
    if then == "continue":
        return Outcome.done({"data": None, "by": None, "at": times.format_timestamp(run.now)})
    sentence = f"no {name} arrived within {given.get('timeout')}"
    if then == "park":
        return Outcome("failed", failure=Failure("Timeout", sentence), attempt=1, retryable=False, park_reason=sentence)
    return Outcome("rejected", failure=Failure("Timeout", sentence), attempt=1, retryable=False)


def accept_signal(run: SagaRun, event: SignalReceived) -> list[LedgerEntry]:
    """Store the first signal of a name; return the entries that were waiting for it."""
    if event.name in run.signals:
        return []
    run.signals[event.name] = {
        "data": event.data,
        "by": event.who,
        "at": times.format_timestamp(event.at),
        "reject": event.reject,
    }
    waiting: list[LedgerEntry] = []
    for flight in list(run.flights.values()):
        if flight.kind != "wait":
            continue
        entry = run.entry(flight.entry)
        if entry is not None and (entry.arguments or {}).get("signal") == event.name:
            run.end_timer_flight(flight)
            waiting.append(entry)
    return waiting


def signal_outcome(signal: dict[str, object]) -> Outcome:
    """The outcome of the wait that a signal completes."""
    if signal["reject"] is not None:
        return _rejected(str(signal["reject"]))
    return Outcome.done({"data": signal["data"], "by": signal["by"], "at": signal["at"]})


def forget_rejection(run: SagaRun, entry: LedgerEntry) -> None:
    """Drop the rejecting signal that ended this wait, so that it does not end the next one.

    A signal that arrived after the end of the wait still counts.
    """
    name = str((entry.arguments or {}).get("signal"))
    taken = (entry.error or {}).get("type") == REJECTED_TYPE
    if taken and run.signals.get(name, {}).get("reject") is not None:
        del run.signals[name]


def _wait_arguments(run: SagaRun, entry: LedgerEntry) -> dict[str, object]:
    if entry.arguments is None:
        entry.arguments = arguments.forward_arguments(run, entry)
    return entry.arguments


def _rejected(message: str) -> Outcome:
    return Outcome("rejected", failure=Failure(REJECTED_TYPE, message), attempt=1, retryable=False)
