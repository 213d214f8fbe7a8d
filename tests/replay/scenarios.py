"""The sagas whose histories are kept: every feature of the language with every way in which it can end."""

from __future__ import annotations

from sagas import Absent, Done, Rejected, Unknown
from tests.replay.scenario import (
    Scenario,
    cancel,
    cancel_parent,
    cancel_waiting,
    decide,
    decide_in_child,
    free,
    hold,
    native_cancel,
    pause_and_resume,
    refuse,
    reply,
    saga,
    signal,
    undo,
)

QUICK = "retry: {max_attempts: 2, initial_interval: 20ms, max_interval: 50ms}"

A = "id: a, uses: book, compensate: unbook"
B = "id: b, uses: book, compensate: unbook"
NO = "id: no, uses: require, with: {that: false}"
EACH = 'id: a, for_each: "${{ [1, 2, 3] }}", uses: book, compensate: unbook'
X = "id: x, uses: book, compensate: unbook"
Y = "id: y, uses: book, compensate: unbook"
CHILD = saga("child", X, Y, top="output: 1")
MANY = 'id: m, for_each: "${{ [1, 2, 3, 4, 5, 6] }}", uses: book, compensate: unbook'
SQL = (
    "id: s, uses: sql, with: {connection: shop, run: insert into effects values ('s') on conflict do nothing,"
    " expect_rows: 1}, compensate: {uses: sql, with: {connection: shop, run: delete from effects where what = 's'}}"
)
HTTP = (
    "id: h, uses: http, with: {connection: crm, method: POST, path: /charges, json: {account: h-1, amount: '1.00'},"
    " result: response.json.id}, retry: {max_attempts: 2, initial_interval: 20ms}, timeout: 10s,"
    " compensate: {uses: http, with: {connection: crm, method: POST, path: /refunds,"
    ' json: {charge: "${{ steps.h.result }}"}}}, probe: {uses: http, with: {connection: crm, path: /charges,'
    ' query: {key: "${{ step.key }}"}}, done: response.status == 200, absent: response.status == 404,'
    " result: response.json.id}"
)
HELD = "id: p, uses: kafka.publish, with: {topic: told, key: k, value: {paid: true}, hold: true}"
ASK = "id: ask, uses: kafka.request, with: {topic: commands, value: {room: 7}}, compensate: kafka.request"

LOCKS = "locks: {keys: [k, l], wait: 1h}"
HOLDER = saga("holder", "id: w, uses: wait, with: {signal: go}", top="locks: {keys: [k]}")

PIVOT = "id: p, uses: book, pivot: true"

TELL = (
    "notify: [{when: [completed, compensated, parked, residue, overdue], uses: work,"
    ' with: {value: "${{ saga.state }}"}, intervals: [20ms, 20ms]}]'
)

SCENARIOS = (
    Scenario("line-completed", (saga("line", A, B),), "COMPLETED"),
    Scenario("line-verified-by-an-activity", (saga("line", A, B),), "COMPLETED", input={"text": "x" * 200_000}),
    Scenario("line-started-by-a-plain-client", (saga("line", A, B),), "COMPLETED", plain=True),
    Scenario("line-compensated", (saga("line", A, B, NO),), "COMPENSATED"),
    Scenario(
        "pass-undone",
        (saga("passing", "id: told, uses: pass, compensate: {uses: unwork, with: {value: 1}}", A, NO),),
        "COMPENSATED",
    ),
    Scenario(
        "finish-early",
        (saga("early", A, 'id: end, uses: finish, with: {when: "true", output: 7}', PIVOT, "id: q, uses: work"),),
        "COMPLETED",
    ),
    Scenario(
        "always-undone",
        (saga("always", "id: b, uses: book, compensate: {uses: unbook, always: true}"),),
        "COMPENSATED",
        {"do b": [Rejected("no")]},
    ),
    Scenario("line-undone", (saga("line", A, B),), "COMPENSATED", after=undo),
    Scenario(
        "graph-compensated",
        (saga("graph", A, B + ", needs: [a]", "id: c, uses: book, compensate: unbook, needs: [a]", NO),),
        "COMPENSATED",
    ),
    Scenario("pivot-completed", (saga("pivot", A, PIVOT, "id: q, uses: work"),), "COMPLETED"),
    Scenario(
        "pivot-rejected",
        (saga("pivot", A, PIVOT, "id: q, uses: work"),),
        "COMPENSATED",
        {"do p": [Rejected("no")]},
    ),
    Scenario(
        "pivot-failed-and-sealed",
        (saga("pivot", A, f"id: p, uses: book, pivot: true, {QUICK}"),),
        "COMPENSATED",
        {"do p": [ValueError("x")]},
    ),
    Scenario("for-each-completed", (saga("each", EACH + ", max_parallel: 2"),), "COMPLETED"),
    Scenario("for-each-compensated", (saga("each", EACH, NO),), "COMPENSATED"),
    Scenario(
        "for-each-empty-and-if",
        (
            saga(
                "none",
                "id: a, for_each: [], uses: book, compensate: unbook",
                'id: b, if: "${{ 1 > 2 }}", uses: book, compensate: unbook',
            ),
        ),
        "COMPLETED",
    ),
    Scenario(
        "wait-until",
        (saga("waits", 'id: w, uses: wait, with: {until: "2000-01-01T00:00:00Z"}', A),),
        "COMPLETED",
    ),
    Scenario("wait-for", (saga("waits", "id: w, uses: wait, with: {for: 30ms}", A),), "COMPLETED"),
    Scenario(
        "wait-signalled",
        (saga("waits", "id: w, uses: wait, with: {signal: go, timeout: 1h}", A),),
        "COMPLETED",
        after=signal,
    ),
    Scenario("wait-refused", (saga("waits", A, "id: w, uses: wait, with: {signal: go}"),), "COMPENSATED", after=refuse),
    Scenario(
        "wait-timed-out", (saga("waits", A, "id: w, uses: wait, with: {signal: go, timeout: 50ms}"),), "COMPENSATED"
    ),
    Scenario(
        "wait-timed-out-and-continued",
        (saga("waits", A, "id: w, uses: wait, with: {signal: go, timeout: 50ms, on_timeout: continue}", B),),
        "COMPLETED",
    ),
    Scenario(
        "wait-timed-out-and-parked",
        (saga("waits", A, "id: w, uses: wait, with: {signal: go, timeout: 50ms, on_timeout: park}", B),),
        "COMPLETED",
        after=decide("w", "done", result={"data": 1}),
    ),
    Scenario(
        "cancelled-natively",
        (saga("waits", A, "id: w, uses: wait, with: {signal: go}"),),
        "COMPENSATED",
        after=native_cancel,
    ),
    Scenario(
        "cancelled-by-update", (saga("waits", A, "id: w, uses: wait, with: {signal: go}"),), "COMPENSATED", after=cancel
    ),
    Scenario(
        "deadline",
        (saga("late", A, "id: w, uses: wait, with: {signal: go}", top="deadline: 300ms\nwarn_after: 100ms"),),
        "COMPENSATED",
    ),
    Scenario("confirmed", (saga("tcc", A + ", confirm: fix"),), "COMPLETED"),
    Scenario("tcc-cancelled", (saga("tcc", A + ", confirm: fix", NO),), "COMPENSATED"),
    Scenario(
        "alternates",
        (saga("alternates", "id: a, uses: work, compensate: [unwork, settle]", NO),),
        "COMPENSATED",
        {"undo a": [Rejected("no"), 1]},
    ),
    Scenario(
        "probe-done",
        (saga("probe", f"id: a, uses: work, compensate: unwork, probe: look, {QUICK}"),),
        "COMPLETED",
        {"do a": [ValueError("x")], "probe a": [Done(1)]},
    ),
    Scenario(
        "probe-absent",
        (saga("probe", f"id: a, uses: work, compensate: unwork, probe: look, settle: 50ms, {QUICK}"),),
        "COMPENSATED",
        {"do a": [ValueError("x")], "probe a": [Absent()]},
    ),
    Scenario(
        "probe-unknown",
        (saga("probe", f"id: a, uses: work, compensate: unwork, probe: look, {QUICK}"),),
        "COMPENSATED",
        {"do a": [ValueError("x")], "probe a": [Unknown("?")]},
    ),
    Scenario(
        "asked-once",
        (saga("once", f"id: a, uses: careless, compensate: unwork, probe: look, settle: 50ms, {QUICK}"),),
        "COMPLETED",
        {"do a": [ValueError("x"), 1], "probe a": [Absent()]},
    ),
    Scenario(
        "continue",
        (saga("on", f"id: a, uses: book, compensate: unbook, on_failure: continue, {QUICK}", B),),
        "COMPLETED",
        {"do a": [ValueError("x")]},
    ),
    Scenario(
        "parked-retried",
        (saga("park", A + ", on_failure: park"),),
        "COMPLETED",
        {"do a": [Rejected("no"), 1]},
        after=decide("a", "retry"),
    ),
    Scenario(
        "parked-done",
        (saga("park", A + ", on_failure: park"),),
        "COMPLETED",
        {"do a": [Rejected("no")]},
        after=decide("a", "done", result=1),
    ),
    Scenario(
        "parked-skipped",
        (saga("park", A + ", on_failure: park", B),),
        "COMPLETED",
        {"do a": [Rejected("no")]},
        after=decide("a", "skip"),
    ),
    Scenario(
        "parked-compensated",
        (saga("park", A, B + ", on_failure: park"),),
        "COMPENSATED",
        {"do b": [Rejected("no")]},
        after=decide("b", "compensate"),
    ),
    Scenario(
        "residue-before", (saga("residue", A, NO),), "RESIDUE", {"undo a": [Rejected("no")]}, after=decide("a", "skip")
    ),
    Scenario(
        "residue-after",
        (saga("residue", PIVOT, "id: q, uses: work"),),
        "RESIDUE",
        {"do q": [Rejected("no")]},
        after=decide("q", "skip"),
    ),
    Scenario(
        "definition-bug",
        (saga("bug", A, 'id: b, uses: book, with: {value: "${{ steps.a.result.x.y }}"}, compensate: unbook'),),
        "COMPENSATED",
    ),
    Scenario(
        "forward",
        (
            saga(
                "onward",
                "id: a, uses: book, retry: {initial_interval: 10ms, max_interval: 20ms}",
                top="recovery: forward",
            ),
        ),
        "COMPLETED",
        {"do a": [*[ValueError("x")] * 14, 1]},
    ),
    Scenario("local-completed", (saga("near", A, B, top="defaults: {execution: local, timeout: 2s}"),), "COMPLETED"),
    Scenario(
        "local-compensated",
        (saga("near", A, B, top="defaults: {execution: local, timeout: 2s}"),),
        "COMPENSATED",
        {"do b": [Rejected("no")]},
    ),
    Scenario("sql-completed", (saga("rows", SQL),), "COMPLETED"),
    Scenario("sql-compensated", (saga("rows", SQL, NO),), "COMPENSATED"),
    Scenario(
        "sql-rejected",
        (saga("rows", SQL, SQL.replace("id: s", "id: t").replace("expect_rows: 1", "expect_rows: 2")),),
        "COMPENSATED",
    ),
    Scenario("http-completed", (saga("pay", HTTP),), "COMPLETED", http=()),
    Scenario("http-compensated", (saga("pay", HTTP, NO),), "COMPENSATED", http=()),
    Scenario("http-rejected", (saga("pay", A, HTTP.replace("h-1", "broke")),), "COMPENSATED", http=()),
    Scenario("http-found-by-its-probe", (saga("pay", HTTP),), "COMPLETED", http=({"drop": "after"}, {"status": 503})),
    Scenario("continued-completed", (saga("on", MANY, A),), "COMPLETED", long=True),
    Scenario("continued-compensated", (saga("on", MANY, NO),), "COMPENSATED", long=True),
    Scenario(
        "continued-and-signalled",
        (saga("on", MANY, "id: w, uses: wait, with: {signal: go, timeout: 1h}", A, top="deadline: 1h"),),
        "COMPLETED",
        after=signal,
        long=True,
    ),
    Scenario(
        "continued-and-cancelled-natively",
        (saga("on", MANY, "id: w, uses: wait, with: {signal: go}"),),
        "COMPENSATED",
        after=native_cancel,
        long=True,
    ),
    Scenario("child-completed", (saga("parent", A, "id: c, uses: saga, with: {name: child}"), CHILD), "COMPLETED"),
    Scenario("child-undone", (saga("parent", A, "id: c, uses: saga, with: {name: child}", NO), CHILD), "COMPENSATED"),
    Scenario(
        "child-cancelled",
        (
            saga("parent", A, "id: c, uses: saga, with: {name: child}"),
            saga("child", X, "id: w, uses: wait, with: {signal: go}"),
        ),
        "COMPENSATED",
        after=cancel_parent,
    ),
    Scenario(
        "parent-undone",
        (saga("parent", A, "id: c, uses: saga, with: {name: child}"), CHILD),
        "COMPENSATED",
        after=undo,
    ),
    Scenario(
        "confirmed-then-undone",
        (saga("tcc", "id: a, uses: book, confirm: fix, compensate: {uses: unwork, confirmed: unbook}"),),
        "COMPENSATED",
        after=undo,
    ),
    Scenario(
        "child-rejected",
        (saga("parent", A, "id: c, uses: saga, with: {name: child}"), CHILD),
        "COMPENSATED",
        {"do y": [Rejected("no")]},
    ),
    Scenario(
        "child-parked",
        (
            saga("parent", A, "id: c, uses: saga, with: {name: child}"),
            CHILD.replace("id: y,", "id: y, on_failure: park,"),
        ),
        "COMPLETED",
        {"do y": [Rejected("no"), 1]},
        after=decide_in_child("y", "retry"),
    ),
    Scenario(
        "child-undo-parked",
        (saga("parent", A, "id: c, uses: saga, with: {name: child}", NO), CHILD),
        "COMPENSATED",
        {"undo x": [Rejected("no"), 1]},
        after=decide_in_child("x", "retry"),
    ),
    Scenario("event-held-and-published", (saga("tells", A, HELD, B),), "COMPLETED"),
    Scenario("event-held-and-dropped", (saga("tells", A, HELD, NO),), "COMPENSATED"),
    Scenario("command-done", (saga("asks", A, ASK, B),), "COMPLETED", after=reply(("", "done", {"room": 7}))),
    Scenario(
        "command-rejected",
        (saga("asks", A, ASK),),
        "COMPENSATED",
        after=reply(("", "rejected", {"reason": "no room", "details": {}})),
    ),
    Scenario(
        "command-undone",
        (saga("asks", A, ASK, NO),),
        "COMPENSATED",
        after=reply(("", "done", {"room": 7}), ("/undo", "done", None)),
    ),
    Scenario(
        "command-unanswered",
        (saga("asks", A, f"{ASK}, timeout: 1s, {QUICK}"),),
        "COMPENSATED",
        after=reply(("/undo", "done", None)),
    ),
    Scenario("locks-held", (saga("locked", A, B, top=LOCKS),), "COMPLETED"),
    Scenario("locks-waited-for", (saga("locked", A, B, top=LOCKS), HOLDER), "COMPLETED", before=hold, after=free),
    Scenario(
        "locks-from-a-step-to-the-commit",
        (saga("locked", A, PIVOT, "id: q, uses: work", top=f"{LOCKS[:-1]}, from: p, until: commit}}"), HOLDER),
        "COMPLETED",
        before=hold,
        after=free,
    ),
    Scenario(
        "locks-not-waited-for",
        (saga("locked", A, B, top=LOCKS.replace("1h", "fail")), HOLDER),
        "COMPENSATED",
        before=hold,
    ),
    Scenario(
        "locks-not-in-time", (saga("locked", A, B, top=LOCKS.replace("1h", "50ms")), HOLDER), "COMPENSATED", before=hold
    ),
    Scenario(
        "locks-cancelled", (saga("locked", A, B, top=LOCKS), HOLDER), "COMPENSATED", before=hold, after=cancel_waiting
    ),
    Scenario("locks-undone", (saga("locked", A, B, top=LOCKS),), "COMPENSATED", after=undo),
    Scenario(
        "paused-and-resumed",
        (saga("paused", A, "id: w, uses: wait, with: {signal: go}", B, NO),),
        "COMPENSATED",
        after=pause_and_resume,
    ),
    Scenario("told-completed", (saga("told", A, top=TELL),), "COMPLETED"),
    Scenario("told-compensated", (saga("told", A, NO, top=TELL),), "COMPENSATED"),
    Scenario("told-undone", (saga("told", A, top=TELL),), "COMPENSATED", after=undo),
    Scenario(
        "told-parked",
        (saga("told", A + ", on_failure: park", top=TELL),),
        "COMPLETED",
        {
            "do a": [Rejected("no"), 1],
            "do notify-0-parked": [ValueError("x")],
            "do notify-0-completed": [ValueError("x"), 1],
        },
        after=decide("a", "retry"),
    ),
    Scenario(
        "told-residue",
        (saga("told", A, NO, top=TELL),),
        "RESIDUE",
        {"undo a": [Rejected("no")], "do notify-0-residue": [Rejected("told enough")]},
        after=decide("a", "skip"),
    ),
    Scenario("told-wrongly", (saga("told", A, top=TELL.replace("saga.state", "input.lost")),), "COMPLETED"),
    Scenario(
        "told-overdue-and-continued",
        (saga("told", "id: w, uses: wait, with: {for: 2s}", MANY, A, top=f"warn_after: 1ms\n{TELL}"),),
        "COMPLETED",
        long=True,
    ),
)
