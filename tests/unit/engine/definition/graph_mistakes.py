"""Wrong definitions whose steps do not go together: their graph and their kinds (SAGA2xx)."""

from __future__ import annotations

from tests.unit.engine.definition.mistake import BOOK, RESERVE, TELL, Mistake, saga, spark

GRAPH_MISTAKES = [
    Mistake("SAGA201", "unknown needs", saga("  - {id: a, uses: shop.book, pivot: true, needs: [⟦resrve]}\n")),
    Mistake("SAGA201", "one unknown need", saga("  - {id: a, uses: shop.book, pivot: true, needs: ⟦resrve}\n")),
    Mistake(
        "SAGA202",
        "a circle",
        saga(
            "  - {id: a, uses: shop.tell, effect: none, ⟦needs: [b]}\n"
            "  - {id: b, uses: shop.tell, effect: none, needs: [a]}\n"
        ),
    ),
    Mistake("SAGA202", "itself", saga("  - {id: a, uses: shop.book, pivot: true, ⟦needs: [a]}\n")),
    Mistake("SAGA203", "two pivots", saga(BOOK + "  - {id: again, uses: shop.book, ⟦pivot: true}\n"), ("SAGA103",)),
    Mistake("SAGA204", "compensate", saga("  - {id: a, uses: shop.book, pivot: true, ⟦compensate: shop.tell}\n")),
    Mistake("SAGA204", "confirm", saga("  - {id: a, uses: shop.book, pivot: true, ⟦confirm: shop.tell}\n")),
    Mistake("SAGA204", "for_each", saga("  - {id: a, uses: shop.book, pivot: true, ⟦for_each: [1]}\n")),
    Mistake("SAGA204", "if", saga("  - {id: a, uses: shop.book, pivot: true, ⟦if: 'true'}\n")),
    Mistake("SAGA204", "continue", saga("  - {id: a, uses: shop.book, pivot: true, on_failure: ⟦continue}\n")),
    Mistake("SAGA205", "no compensate", saga("  - {id: ⟦a, uses: shop.book}\n")),
    Mistake(
        "SAGA206", "compensate after the pivot", saga(BOOK + "  - {id: a, uses: shop.tell, ⟦compensate: shop.tell}\n")
    ),
    Mistake(
        "SAGA207",
        "a read with compensate",
        saga("  - {id: a, uses: shop.book, effect: none, ⟦compensate: shop.tell}\n"),
    ),
    Mistake(
        "SAGA207",
        "GET with compensate",
        saga("  - {id: a, uses: http, with: {url: 'http://a'}, ⟦compensate: {uses: shop.tell, with: {}}}\n"),
    ),
    *(
        Mistake(
            "SAGA207",
            f"a read that does {about}",
            saga(f"  - {{id: a, uses: sql, effect: none, with: {{connection: shop, run: ⟦{run}}}}}\n"),
        )
        for about, run in (
            ("insert", "insert into t values (1)"),
            ("update", "update t set x = 1 where id = 2"),
            ("delete", "delete from t"),
            ("delete in a CTE", "'with gone as (delete from t returning id) select * from gone'"),
        )
    ),
    Mistake(
        "SAGA207",
        "a probe that changes rows",
        saga(
            "  - {id: a, uses: shop.book, pivot: true, probe: {uses: sql, done: 'true',"
            " with: {connection: shop, run: ⟦delete from t}}}\n"
        ),
        also=("SAGA118",),
    ),
    Mistake(
        "SAGA207",
        "a read that publishes",
        saga("  - {id: a, uses: kafka.publish, effect: ⟦none, with: {topic: t, value: 1}}\n"),
    ),
    Mistake("SAGA207", "a nested saga as a read", saga("  - {id: a, uses: saga, effect: ⟦none, with: {name: b}}\n")),
    Mistake(
        "SAGA207",
        "a Spark step as a read",
        spark("output: {parquet: x}", more=", effect: ⟦none"),
    ),
    Mistake(
        "SAGA207",
        "a pass with a confirm",
        saga(
            "  - {id: a, uses: pass, compensate: {uses: shop.tell, with: {}}, ⟦confirm: {uses: shop.tell, with: {}}}\n"
        ),
    ),
    Mistake(
        "SAGA207",
        "finish with compensate",
        saga("  - {id: a, uses: finish, with: {when: 'true'}, ⟦compensate: {uses: shop.tell, with: {}}}\n" + BOOK),
    ),
    Mistake("SAGA214", "after the pivot", saga(BOOK + "  - {id: a, uses: ⟦finish, with: {when: 'true'}}\n")),
    Mistake(
        "SAGA214", "once per item", saga("  - {id: a, uses: finish, with: {when: 'true'}, ⟦for_each: [1]}\n" + BOOK)
    ),
    Mistake("SAGA214", "a pivot", saga("  - {id: a, uses: finish, with: {when: 'true'}, ⟦pivot: true}\n")),
    Mistake(
        "SAGA214",
        "parallel to an effect",
        saga(RESERVE + "  - {id: a, uses: ⟦finish, with: {when: 'true'}, needs: []}\n" + BOOK),
    ),
    Mistake(
        "SAGA206",
        "a pass after the pivot",
        saga(BOOK + "  - {id: a, uses: pass, ⟦compensate: {uses: shop.tell, with: {}}}\n"),
    ),
    Mistake(
        "SAGA242",
        "an undo that waits",
        saga("  - {id: a, uses: shop.tell, compensate: {uses: ⟦wait, with: {for: 1s}}}\n"),
    ),
    Mistake(
        "SAGA243",
        "an undo by GET",
        saga("  - {id: a, uses: shop.tell, compensate: {uses: ⟦http, with: {url: 'http://a'}}}\n"),
    ),
    Mistake(
        "SAGA243",
        "a confirm by HEAD",
        saga(
            "  - id: a\n    uses: shop.tell\n    compensate: shop.tell\n"
            "    confirm: {uses: ⟦http, with: {url: 'http://a', method: HEAD}}\n"
        ),
    ),
    Mistake(
        "SAGA243",
        "an undo with the arguments of a GET",
        saga("  - {id: a, uses: http, with: {url: 'http://a'}, compensate: ⟦http}\n"),
        also=("SAGA207", "SAGA236"),
    ),
    Mistake(
        "SAGA207",
        "a pivot by GET",
        saga("  - {id: a, uses: http, with: {url: 'http://a'}, ⟦pivot: true}\n"),
        also=("SAGA220", "SAGA223"),
    ),
    Mistake(
        "SAGA242",
        "a confirm that requires",
        saga("  - {id: a, uses: shop.tell, compensate: shop.tell, confirm: {uses: ⟦require, with: {that: 'true'}}}\n"),
    ),
    Mistake(
        "SAGA208", "compensate after the pivot", saga(BOOK + "  - {id: a, uses: shop.tell, on_failure: ⟦compensate}\n")
    ),
    Mistake(
        "SAGA209",
        "beside the pivot",
        saga(BOOK + "  - {id: ⟦b, uses: shop.book, compensate: shop.tell, needs: []}\n"),
    ),
    Mistake("SAGA210", "after the pivot", saga(BOOK + "  - {id: a, uses: shop.tell, retry: {⟦max_attempts: 3}}\n")),
    Mistake(
        "SAGA210", "time after the pivot", saga(BOOK + "  - {id: a, uses: shop.tell, retry: {⟦give_up_after: 3h}}\n")
    ),
    Mistake(
        "SAGA210",
        "in a confirm",
        saga(
            "  - id: a\n    uses: shop.book\n    compensate: shop.tell\n"
            "    confirm: {uses: shop.tell, retry: {⟦max_attempts: 3}}\n"
        ),
    ),
    Mistake(
        "SAGA212", "compensate", saga("  - {id: a, uses: shop.tell, ⟦compensate: shop.tell}\n", "recovery: forward\n")
    ),
    Mistake("SAGA212", "pivot", saga("  - {id: a, uses: shop.tell, ⟦pivot: true}\n", "recovery: forward\n")),
    Mistake(
        "SAGA216",
        "among others",
        saga(
            "  - {id: a, uses: shop.book, compensate: {uses: shop.tell, confirmed: shop.tell}, confirm: shop.tell}\n"
            "  - {id: b, uses: shop.book, compensate: shop.tell, ⟦confirm: shop.tell}\n"
        ),
    ),
    Mistake(
        "SAGA220", "an unguarded pivot", saga("  - {id: a, uses: ⟦bank.charge, with: {amount: '1'}, pivot: true}\n")
    ),
    Mistake("SAGA221", "blind", saga("  - {id: a, uses: ⟦bank.blind, compensate: shop.tell}\n")),
    Mistake(
        "SAGA221",
        "a connection without keys",
        saga(
            "  - {id: a, uses: ⟦http, with: {connection: old, method: POST, path: /a},"
            " compensate: {uses: shop.tell, with: {}}}\n"
        ),
    ),
    *(
        Mistake(
            "SAGA223",
            about,
            saga(
                f"  - {{id: a, uses: ⟦http, with: {{connection: bank, method: POST, path: /a{statuses}}},"
                " compensate: {uses: shop.tell, with: {}}}\n"
            ),
        )
        for about, statuses in (
            ("a conflict by default", ""),
            ("locked", ", rejected: [423]"),
            ("a class", ", rejected: [4xx]"),
        )
    ),
    *(
        Mistake(
            "SAGA222",
            about,
            saga(f"  - {{id: a, uses: bank.charge, with: {{amount: '1'}}, pivot: true, probe: {{{probe}}}}}\n"),
            ("SAGA220",),
        )
        for about, probe in (
            ("an http probe without expressions", "uses: ⟦http, with: {url: 'http://a'}"),
            ("an http probe with a result only", "uses: ⟦http, with: {url: 'http://a'}, result: response.json"),
            ("a sql probe without expressions", "uses: ⟦sql, with: {connection: shop, run: select 1}"),
            ("a probe that waits", "uses: ⟦wait, with: {for: 1s}, done: 'true'"),
            ("a probe that publishes", "uses: ⟦kafka.publish, with: {topic: t, value: 1}, done: 'true'"),
            ("a probe of a price", "uses: ⟦shop.price, with: {}"),
        )
    ),
    Mistake("SAGA241", "on a pivot", saga("  - {id: a, uses: shop.tell, pivot: true, ⟦savepoint: {}}\n" + TELL)),
    Mistake(
        "SAGA241", "on the last step", saga(RESERVE + "  - {id: z, uses: shop.price, effect: none, ⟦savepoint: {}}\n")
    ),
    Mistake(
        "SAGA241",
        "beside another step",
        saga(
            "  - {id: a, uses: shop.price, effect: none, ⟦savepoint: {}}\n"
            "  - {id: b, needs: [], uses: shop.price, effect: none}\n" + BOOK
        ),
    ),
    Mistake("SAGA240", "no read", saga("  - {id: a, uses: shop.tell, pivot: true, ⟦check: {uses: wait}}\n")),
    Mistake("SAGA240", "in short form", saga("  - {id: a, uses: shop.tell, pivot: true, ⟦check: sql}\n")),
    Mistake(
        "SAGA240",
        "a statement with an effect",
        saga(
            "  - {id: a, uses: shop.tell, pivot: true, ⟦check: "
            "{uses: sql, with: {connection: shop, run: delete from t}}}\n"
        ),
    ),
    Mistake(
        "SAGA240", "only forward", saga("  - {id: a, uses: shop.tell, ⟦check: shop.price}\n", "recovery: forward\n")
    ),
    Mistake(
        "SAGA303",
        "a check over an earlier step",
        saga(
            "  - {id: a, uses: shop.price, effect: none}\n"
            "  - {id: b, uses: shop.tell, pivot: true, check: "
            "{uses: bank.charge, with: {amount: '${{ string(⟦steps.a.result.amount) }}'}}}\n"
        ),
    ),
    Mistake("SAGA230", "a second", saga("  - {id: a, uses: shop.book, pivot: true, timeout: ⟦1s}\n")),
    Mistake("SAGA231", "once", saga("  - {id: a, uses: shop.book, pivot: true, retry: {max_attempts: ⟦1}}\n")),
    Mistake(
        "SAGA232", "too little time", saga("  - {id: a, uses: shop.book, pivot: true, retry: {give_up_after: ⟦40s}}\n")
    ),
    Mistake(
        "SAGA234",
        "too short",
        saga(
            "  - {id: a, uses: bank.charge, with: {amount: '1'}, pivot: true, settle: ⟦5s,\n"
            "     probe: {uses: bank.find, with: {}, task_queue: bank}}\n"
        ),
    ),
    Mistake(
        "SAGA235",
        "a statement for a foreign worker",
        saga(
            "  - {id: a, uses: far.book, pivot: true, task_queue: far, "
            "probe: {uses: sql, task_queue: ⟦near, with: {connection: shop, run: select 1 as n}, done: 'true'}}\n"
        ),
    ),
    Mistake(
        "SAGA236",
        "the same statement as undo",
        saga(
            "  - {id: a, uses: sql, with: {connection: shop, run: 'update t set n = n - 1 where k = 1'}, "
            "compensate: {uses: ⟦sql}}\n"
            "  - {id: b, uses: pass, pivot: true}\n"
        ),
    ),
    Mistake("SAGA233", "heartbeat", saga("  - {id: a, uses: shop.book, pivot: true, timeout: 10s, heartbeat: ⟦9s}\n")),
]
