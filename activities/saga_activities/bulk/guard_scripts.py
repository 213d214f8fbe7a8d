"""Runs the guard's scripts of many entries side by side, so that what all of them wait for becomes one statement.

``saga_activities.guard.rules`` defines what the rows of one entry mean, as coroutines that insert rows, read them and
run an action. Here such a coroutine is not run by the event loop: it hands out what it awaits, the inserts (or reads)
of all entries are sent together, and each coroutine goes on with its own answer. So there is one definition of the
rules, and a chunk has as many round trips as a single call.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from saga_activities.guard import rules
from saga_activities.guard.entry_key import EntryKey
from saga_activities.guard.rules import ScriptResult
from saga_activities.guard.sql_session import SqlSession
from saga_activities.guard.transaction import GuardRow, RowReason, RowWrite
from sagas.protocol.payloads import Invocation
from sagas.sql_text.sql_results import returns_no_rows

R = TypeVar("R", bound="_ScriptRequest")


class _ScriptRequest:
    """A request that a script awaits. Its answer is sent into the coroutine."""

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield self)


@dataclass(frozen=True, slots=True)
class RowInsert(_ScriptRequest):
    """Insert a row unless it exists; answered by whether it was inserted."""

    key: EntryKey
    op: str
    reason: RowReason
    args_hash: str | None = None
    result: str | None = None
    origin: str | None = None


@dataclass(frozen=True, slots=True)
class RowsRead(_ScriptRequest):
    """The request of a script for the rows of an entry. The answer is a mapping of them."""

    key: EntryKey


@dataclass(frozen=True, slots=True)
class BodyRun(_ScriptRequest):
    """The request of a script to run an action. The answer is its result, or its exception."""

    action: str
    arguments: Mapping[str, Any]


class RowSet(Protocol):
    """The guard rows of many entries, in one transaction."""

    async def insert_rows(self, rows: Sequence[RowInsert]) -> Sequence[bool]:
        """Insert the rows that do not exist; returns for each whether it was inserted here."""
        ...

    async def read_rows(self, keys: Sequence[EntryKey]) -> Sequence[Mapping[str, GuardRow]]:
        """The rows of each entry as last committed. Raises BelowWatermark."""
        ...

    async def delete_rows(self, rows: Sequence[tuple[EntryKey, str]]) -> None:
        """Delete rows that this transaction has inserted."""
        ...

    async def store(self, writes: Sequence[tuple[EntryKey, RowWrite]]) -> None:
        """Store results in rows that this transaction has inserted."""
        ...


class _EntryTransaction:
    """The transaction as the script of one entry sees it; it has the methods that the rules use."""

    def __init__(self, key: EntryKey, expected: str | None) -> None:
        self._key = key
        self._expected = expected

    @property
    def sql(self) -> SqlSession:
        return None  # pyright: ignore[reportReturnType] - the stub of the action takes no session

    async def insert(
        self,
        op: str,
        reason: RowReason,
        *,
        args_hash: str | None = None,
        result: str | None = None,
        origin: str | None = None,
    ) -> bool:
        if op == reason == "do":
            result = self._expected
        return await RowInsert(self._key, op, reason, args_hash, result, origin)  # pyright: ignore[reportReturnType]

    async def rows(self) -> Mapping[str, GuardRow]:
        return await RowsRead(self._key)  # pyright: ignore[reportReturnType]


@dataclass(slots=True)
class EntryScript:
    """The script of one call of a chunk, and how far it is.

    ``error`` is what its action, or the guard, has raised; then its rows must not be committed. ``postponed``: its
    action is left to the next chunk, because this one has no more time, or no room for its result.

    ``expected``: the result with which the row of `do` is inserted; if it turns out so, the row is not written twice.
    """

    invocation: Invocation
    key: EntryKey
    coroutine: Coroutine[Any, Any, ScriptResult]
    expected: str | None = None
    request: _ScriptRequest | None = None
    result: ScriptResult | None = None
    error: BaseException | None = None
    postponed: bool = False
    inserted: list[str] = field(default_factory=list)

    def go_on(self, answer: Any = None) -> None:
        """Continue with the answer to its request, up to the next request or the end."""
        self._continue(self.coroutine.send, answer)

    def fail(self, error: BaseException) -> None:
        """Continue with an exception of its action."""
        self._continue(self.coroutine.throw, error)

    def postpone(self) -> None:
        """End without a result: the action was not run, or what it did is rolled back."""
        self.coroutine.close()
        self.request, self.result, self.postponed = None, None, True

    def _continue(self, step: Callable[[Any], Any], answer: Any) -> None:
        self.request = None
        try:
            self.request = step(answer)
        except StopIteration as ended:
            self.result = ended.value
        except Exception as error:  # noqa: BLE001 - becomes the outcome of this entry
            self.error = error

    @property
    def commits(self) -> bool:
        """Return whether the rows of the entry are to be committed."""
        return self.result is not None and self.result.commit

    @property
    def stored(self) -> RowWrite | None:
        write = self.result.row_write if self.result is not None and self.result.commit else None
        stands = write is not None and write.op == "do" and write.result == self.expected and write.held is None
        return None if stands else write


def make_script(invocation: Invocation, args_hash: str | None) -> EntryScript:
    """The script of a call with a guard. Raises ValueError for an id that no guard row can have."""
    key = EntryKey(invocation.saga_id, invocation.entry, invocation.generation)
    expected = _expected_result(invocation)
    return EntryScript(invocation, key, _script(invocation, args_hash, _EntryTransaction(key, expected)), expected)


def _expected_result(invocation: Invocation) -> str | None:
    """Return what the guard stores of a `sql` step that certainly returns no rows: known before it runs."""
    run = invocation.arguments.get("run") if invocation.action == "sql" else None
    return "[]" if isinstance(run, str) and returns_no_rows(run) else None


def _script(invocation: Invocation, args_hash: str | None, tx: Any) -> Coroutine[Any, Any, ScriptResult]:
    guard = invocation.guard
    assert guard is not None
    body = None if guard.mode == "mark" else _stub(invocation.action, invocation.arguments)
    match invocation.op:
        case "seal":
            return rules.seal(tx, invocation.origin)
        case "undo":
            confirmed = guard.confirmed
            confirmed_body = _stub(*confirmed) if isinstance(confirmed, tuple) else confirmed
            known_done, own = guard.known_done, (guard.forward_hash, invocation.origin)
            return rules.undo(tx, body, confirmed_body, known_done, guard.mode, *own)
        case "confirm":
            return rules.confirm(tx, body, guard.mode, invocation.origin)
    assert body is not None
    return rules.do(tx, args_hash, body, invocation.origin, guard.room)


def _stub(action: str, arguments: Mapping[str, Any]) -> Callable[[SqlSession], Awaitable[Any]]:
    async def body(_: SqlSession) -> Any:
        return await BodyRun(action, arguments)

    return body


async def run_scripts(
    scripts: Sequence[EntryScript], rows: RowSet, run_bodies: Callable[[Sequence[EntryScript]], Awaitable[None]]
) -> None:
    """Run the scripts up to their ends, and leave only the rows of those that succeeded, with their results.

    Actions run when no script waits for a row any more; ``run_bodies`` ends each of the scripts' requests. Nothing is
    committed here.
    """
    for script in scripts:
        script.go_on()
    while True:
        if inserting := _waiting_for(scripts, RowInsert):
            # In the order of the keys, so that two chunks with the same entries do not deadlock.
            inserting.sort(key=lambda pair: (pair[1].key.saga_id, pair[1].key.entry, pair[1].key.generation))
            inserted = await rows.insert_rows([request for _, request in inserting])
            for (script, request), won in zip(inserting, inserted, strict=True):
                if won:
                    script.inserted.append(request.op)
                script.go_on(won)
        elif reading := _waiting_for(scripts, RowsRead):
            stored = await rows.read_rows([request.key for _, request in reading])
            for (script, _), own in zip(reading, stored, strict=True):
                script.go_on(own)
        elif running := _waiting_for(scripts, BodyRun):
            await run_bodies([script for script, _ in running])
        else:
            break
    if dropped := [(script.key, op) for script in scripts if not script.commits for op in script.inserted]:
        await rows.delete_rows(dropped)
    await rows.store([(script.key, script.stored) for script in scripts if script.stored is not None])


def _waiting_for(scripts: Sequence[EntryScript], kind: type[R]) -> list[tuple[EntryScript, R]]:
    return [(script, script.request) for script in scripts if isinstance(script.request, kind)]
