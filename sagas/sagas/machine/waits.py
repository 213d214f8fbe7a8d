"""The built-in actions that need nobody else: `require` and `wait`."""

from __future__ import annotations

from sagas.machine import arguments, moments
from sagas.machine.arguments import DefinitionFault
from sagas.machine.events import SignalReceived
from sagas.machine.run import Run
from sagas.machine.state import Entry
from sagas.outcomes import Failure, Outcome

REFUSED = "Rejected"
"""The failure type of a business no; a wait that ran out has another one."""


def require(run: Run, entry: Entry) -> Outcome:
    """`require`: a condition; false is a business no."""
    given = _given(run, entry)
    value = given.get("that")
    if not isinstance(value, bool):
        raise DefinitionFault(f"{entry.id}: `that` is neither true nor false")
    if value:
        return Outcome.done(None)
    return _no(str(given.get("message") or "the requirement is not met"))


def begin(run: Run, entry: Entry) -> Outcome | None:
    """`wait`: the outcome when it is known already, else a flight is noted."""
    given = _given(run, entry)
    name = given.get("signal")
    try:
        if name is not None:
            early = run.signals.get(str(name))
            if early is not None:
                return answer(early)
            limit = given.get("timeout")
            length = None if limit is None else moments.seconds(limit)
            summary = f"wait for {name}"
        elif given.get("until") is not None:
            length = max(0.0, moments.instant(given["until"]) - run.now)
            summary = f"wait until {given['until']}"
        else:
            length = moments.seconds(given.get("for"))
            summary = f"wait {given.get('for')}"
    except ValueError as error:
        raise DefinitionFault(f"{entry.id}: {error}") from None
    run.depart(f"{entry.id}~wait", "wait", entry, "do", seconds=length, summary=summary)
    return None


def fired(run: Run, entry: Entry) -> Outcome:
    """Its timer has fired."""
    given = entry.arguments or {}
    if given.get("signal") is None:
        return Outcome.done({"data": None, "by": None, "at": moments.iso(run.now)})
    name, then = given["signal"], given.get("on_timeout", "reject")
    if then == "continue":
        return Outcome.done({"data": None, "by": None, "at": moments.iso(run.now)})
    sentence = f"no {name} came within {given.get('timeout')}"
    if then == "park":
        return Outcome("failed", failure=Failure("Timeout", sentence), attempt=1, retryable=False, parks=sentence)
    return Outcome("rejected", failure=Failure("Timeout", sentence), attempt=1, retryable=False)


def signalled(run: Run, event: SignalReceived) -> list[Entry]:
    """Keep the first signal of a name; returns the entries that were waiting for it."""
    if event.name in run.signals:
        return []
    run.signals[event.name] = {
        "data": event.data,
        "by": event.who,
        "at": moments.iso(event.at),
        "reject": event.reject,
    }
    waiting: list[Entry] = []
    for flight in list(run.flights.values()):
        if flight.kind != "wait":
            continue
        entry = run.entry(flight.entry)
        if entry is not None and (entry.arguments or {}).get("signal") == event.name:
            run.drop_timer(flight)
            waiting.append(entry)
    return waiting


def answer(signal: dict[str, object]) -> Outcome:
    """What a signal means for the wait it answers."""
    if signal["reject"] is not None:
        return _no(str(signal["reject"]))
    return Outcome.done({"data": signal["data"], "by": signal["by"], "at": signal["at"]})


def forget_refusal(run: Run, entry: Entry) -> None:
    """The refusal that ended this wait must not end the next one; a signal that came after its end still counts."""
    name = str((entry.arguments or {}).get("signal"))
    taken = (entry.error or {}).get("type") == REFUSED
    if taken and run.signals.get(name, {}).get("reject") is not None:
        del run.signals[name]


def _given(run: Run, entry: Entry) -> dict[str, object]:
    if entry.arguments is None:
        entry.arguments = arguments.forward(run, entry)
    return entry.arguments


def _no(message: str) -> Outcome:
    return Outcome("rejected", failure=Failure(REFUSED, message), attempt=1, retryable=False)
