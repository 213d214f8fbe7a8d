"""Wrong definitions with Spark steps, notifications, automatic compensation or two-phase commit: one per row."""

from __future__ import annotations

from sagas.definition.parser.draft import KafkaResources, SparkResources
from tests.unit.engine.definition.mistake import BOOK, NOTIFY, TOLD, Mistake, saga, spark

FEATURE_MISTAKES = [
    # Spark steps
    Mistake(
        "SAGA407",
        "own compensate",
        spark("output: {table: lake.s.t}", more=", ⟦compensate: {uses: shop.book, with: {}}"),
    ),
    Mistake(
        "SAGA407", "own confirm", spark("output: {table: lake.s.t}", more=", ⟦confirm: {uses: shop.book, with: {}}")
    ),
    Mistake("SAGA204", "a Spark pivot", spark("output: {table: lake.s.t}", more=", ⟦pivot: true")),
    Mistake("SAGA107", "the name of an input", spark("output: {table: lake.s.t}, inputs: {⟦../o: {parquet: x}}")),
    Mistake("SAGA107", "a long name of an output", spark("outputs: {⟦" + "o" * 65 + ": {table: lake.s.t}}")),
    Mistake("SAGA408", "no output", saga("  - {id: a, uses: spark, with: ⟦{sql: select 1 as a}}\n")),
    Mistake("SAGA408", "no job", saga("  - {id: a, uses: spark, with: ⟦{output: {table: lake.s.t}}}\n")),
    Mistake(
        "SAGA408",
        "several outputs of a SQL job",
        saga(
            "  - {id: a, uses: spark, with: {job: {sql: select 1 as a},"
            " outputs: ⟦{x: {table: lake.s.t}, y: {parquet: y}}}}\n"
        ),
    ),
    Mistake("SAGA408", "several outputs of SQL", spark("outputs: ⟦{x: {table: lake.s.t}, y: {parquet: y}}")),
    Mistake("SAGA408", "an output nowhere", spark("output: ⟦{mode: append}")),
    Mistake("SAGA408", "merge without key", spark("output: ⟦{table: lake.s.t, mode: merge}")),
    Mistake("SAGA408", "not a table of a catalog", spark("output: {table: ⟦facts}")),
    Mistake("SAGA408", "two sources", spark("output: {table: lake.s.t}, inputs: {o: ⟦{parquet: x, step: b}}")),
    Mistake(
        "SAGA408",
        "a connection without table",
        spark("output: {table: lake.s.t}, inputs: {o: ⟦{connection: shop}}"),
    ),
    Mistake("SAGA408", "a check of two kinds", spark("output: {table: lake.s.t}, audit: [⟦{unique: a, not_null: a}]")),
    Mistake(
        "SAGA408", "a check of no output", spark("output: {table: lake.s.t}, audit: [{unique: a, output: ⟦facts}]")
    ),
    Mistake(
        "SAGA408",
        "not a Spark step",
        saga(
            "  - {id: a, uses: shop.tell, effect: none}\n"
            "  - {id: b, uses: spark, with: {sql: s, output: {parquet: x}, inputs: {i: {step: ⟦a}}}}\n"
        ),
    ),
    Mistake("SAGA302", "an unknown step as input", spark("output: {table: lake.s.t}, inputs: {o: {step: ⟦z}}")),
    Mistake(
        "SAGA303",
        "a step beside as input",
        saga(
            "  - {id: b, uses: spark, needs: [], with: {sql: s, output: {parquet: x}}}\n"
            "  - {id: a, uses: spark, needs: [], with: {sql: s, output: {parquet: y}, inputs: {i: {step: ⟦b}}}}\n"
        ),
    ),
    Mistake(
        "SAGA405",
        "an unknown connection of an input",
        spark("output: {table: lake.s.t}, inputs: {o: {connection: ⟦shoppe, table: o}}"),
    ),
    Mistake(
        "SAGA408",
        "a change of a part",
        spark("output: {parquet: x}, audit: [{rows: {change: 20%}, where: ⟦a > 1}]"),
    ),
    Mistake("SAGA409", "a pointer cannot merge", spark("output: {parquet: x, mode: ⟦merge, key: a}")),
    Mistake(
        "SAGA409",
        "a database has no partitions",
        spark("output: {connection: shop, table: t, mode: ⟦overwrite_partitions}"),
    ),
    Mistake("SAGA409", "a topic cannot be overwritten", spark("output: {topic: t, mode: ⟦overwrite}")),
    Mistake("SAGA409", "together in a topic", spark("output: ⟦{topic: t}", top="publish: together\n")),
    Mistake("SAGA409", "together in files", spark("output: ⟦{parquet: x}", top="publish: together\n")),
    Mistake(
        "SAGA409", "together in a catalog that cannot", spark("output: ⟦{table: glue.s.t}", top="publish: together\n")
    ),
    Mistake("SAGA409", "together by some server", spark("output: ⟦{table: far.s.t}", top="publish: together\n")),
    Mistake(
        "SAGA410",
        "no ledger",
        saga("  - {id: a, uses: ⟦spark, with: {sql: select 1 as a, output: {parquet: x}}}\n"),
        spark=SparkResources(),
    ),
    Mistake(
        "SAGA417",
        "a program over Spark Connect",
        saga("  - {id: a, uses: spark, with: {job: {main: ⟦x.py}, output: {parquet: x}}}\n"),
        spark=SparkResources("shop", remote=True),
    ),
    Mistake(
        "SAGA417",
        "a time zone over Spark Connect",
        saga(
            "  - {id: a, uses: spark, with: {sql: select 1 as a, output: {parquet: x}, "
            "conf: {spark.sql.session.timeZone: ⟦CET}}}\n"
        ),
        spark=SparkResources("shop", remote=True),
    ),
    Mistake(
        "SAGA408",
        "a property that staged files rely on",
        spark("output: {parquet: x}, conf: {spark.sql.parquet.outputTimestampType: ⟦INT96}"),
    ),
    Mistake("SAGA411", "an unknown catalog", spark("output: {table: ⟦lac.s.t}")),
    Mistake("SAGA140", "an action of the engine", saga(BOOK, NOTIFY.format(one="uses: ⟦wait, with: {for: 1s}"))),
    Mistake(
        "SAGA140",
        "a held event",
        saga(
            BOOK,
            NOTIFY.format(
                one="uses: ⟦outbox.emit, with: {connection: shop, events: [{topic: t, value: 1, hold: true}]}"
            ),
        ),
    ),
    Mistake("SAGA141", "never overdue", saga(BOOK, "notify: [{⟦when: overdue, uses: shop.tell, with: {}}]\n")),
    Mistake("SAGA105", "a notification without a moment", saga(BOOK, "notify: [⟦{uses: shop.tell}]\n")),
    Mistake("SAGA302", "an event has no such field", saga(BOOK, NOTIFY.format(one=TOLD.format(it="⟦event.what")))),
    Mistake(
        "SAGA305", "a step that may not have run", saga(BOOK, NOTIFY.format(one=TOLD.format(it="⟦steps.book.result.x")))
    ),
    # Schedules
    *(
        Mistake(code, about, saga(BOOK, f"triggers: {{schedule: {schedule}}}\n"))
        for code, about, schedule in (
            ("SAGA134", "an hour too late", "{cron: ⟦0 25 * * *}"),
            ("SAGA134", "four fields", "{cron: ⟦0 3 * *}"),
            ("SAGA134", "the 31st of February", "{cron: ⟦0 3 31 2 *}"),
            ("SAGA134", "the last day of other programs", "{cron: ⟦0 3 L * *}"),
            ("SAGA135", "a time zone that does not exist", "{cron: 0 3 * * *, timezone: ⟦Europe/Berlim}"),
            ("SAGA136", "two fields of days", "{cron: ⟦0 3 13 * fri}"),
            ("SAGA137", "terminate", "{cron: 0 3 * * *, overlap: ⟦terminate_other}"),
            ("SAGA105", "a schedule without times", "⟦{}"),
            ("SAGA302", "no such value of a time", "{cron: 0 3 * * *, id: '${{ ⟦trigger.value }}'}"),
            ("SAGA106", "an unknown policy", "{cron: 0 3 * * *, overlap: ⟦wait}"),
        )
    ),
    # SAGA430: automatic compensation of something else than `sql`; the statements have tests of their own
    Mistake("SAGA430", "auto of a Python action", saga("  - {id: a, uses: shop.book, compensate: ⟦auto}\n")),
    *(
        Mistake(code, about, saga(f"  - {{id: a, uses: sql, with: {{connection: shop, run: select 1{step}}}\n"))
        for code, about, step in (
            ("SAGA423", "a prepared pivot", ", ⟦two_phase: true}, pivot: true"),
            ("SAGA423", "a prepared read", ", ⟦two_phase: true}, effect: none"),
            ("SAGA423", "a computed two_phase", ", two_phase: ⟦'${{ input.x == 1 }}'}, pivot: true"),
            (
                "SAGA423",
                "a prepared compensation",
                "}, compensate: {uses: sql, with: {connection: shop, run: select 1, ⟦two_phase: true}}",
            ),
            (
                "SAGA424",
                "a compensation of a prepared step",
                ", two_phase: true}, ⟦compensate: {uses: shop.book, with: {}}",
            ),
            ("SAGA424", "a confirm of a prepared step", ", two_phase: true}, ⟦confirm: {uses: shop.book, with: {}}"),
        )
    ),
    *(
        Mistake("SAGA419", about, saga(f"  - {{id: a, uses: http, with: {{url: 'http://a', {given}}}{more}}}\n"))
        for about, given, more in (
            ("a callback of a read", "callback: ⟦{timeout: 1m}", ""),
            (
                "the address of no callback",
                'method: POST, rejected: [422], json: "${{ ⟦step.callback_url }}"',
                ", compensate: {uses: shop.tell, with: {}}",
            ),
            (
                "a calculation with an address",
                'method: POST, rejected: [422], callback: {}, json: "${{ size(⟦step.callback_url) }}"',
                ", compensate: {uses: shop.tell, with: {}}",
            ),
        )
    ),
    *(
        Mistake(code, about, saga(f"  - {{{step}}}\n"))
        for code, about, step in (
            ("SAGA205", "a published event before the end", "id: ⟦a, uses: kafka.publish, with: {topic: t, value: 1}"),
            (
                "SAGA205",
                "one event that is not held",
                "id: ⟦a, uses: outbox.emit, with: {connection: shop, events: [{topic: t, value: 1, hold: true}, "
                "{topic: t, value: 2}]}",
            ),
            ("SAGA402", "an event without a topic", "id: a, uses: kafka.publish, with: ⟦{value: 1}, pivot: true"),
            (
                "SAGA404",
                "an event for a topic that no broker can have",
                "id: a, uses: kafka.publish, with: {topic: ⟦or ders, value: 1}, pivot: true",
            ),
            (
                "SAGA416",
                "an event with a header of the engine's own",
                "id: a, uses: kafka.publish, with: {topic: t, value: 1, headers: {⟦ce_id: x}}, pivot: true",
            ),
            (
                "SAGA416",
                "an event of a list with such a header",
                "id: a, uses: outbox.emit, with: {connection: shop, events: [{topic: t, value: 1, headers: "
                "{sagakey: k, ⟦Content-Type: x}}]}, pivot: true",
            ),
            ("SAGA402", "an event without a value", "id: a, uses: kafka.publish, with: ⟦{topic: t}, pivot: true"),
            (
                "SAGA404",
                "an event of a list without a value",
                "id: a, uses: kafka.publish, with: {events: [⟦{topic: t}]}, pivot: true",
            ),
            (
                "SAGA113",
                "one event and a list",
                "id: a, uses: kafka.publish, with: {topic: ⟦t, value: 1, events: [{topic: t, value: 1}]}, pivot: true",
            ),
            (
                "SAGA113",
                "waiting for a held event",
                "id: a, uses: kafka.publish, with: {topic: t, value: 1, hold: true, wait: ⟦published}",
            ),
            (
                "SAGA405",
                "events to a connection made by an expression",
                'id: a, uses: outbox.emit, with: {connection: ⟦"${{ vars.x }}", topic: t, value: 1}, pivot: true',
            ),
            (
                "SAGA413",
                "a hold made by an expression",
                'id: a, uses: kafka.publish, with: {topic: t, value: 1, hold: ⟦"${{ 1 < 2 }}"}, pivot: true',
            ),
            (
                "SAGA413",
                "a hold made by an expression in a list",
                "id: a, uses: sql, pivot: true, with: {connection: shop, run: select 1, "
                'emit: [{topic: t, value: 1, hold: ⟦"${{ 1 < 2 }}"}]}',
            ),
            (
                "SAGA118",
                "a hold at the commit point",
                "id: a, uses: sql, pivot: true, with: {connection: shop, run: select 1, "
                "emit: [{topic: t, value: 1, hold: ⟦true}]}",
            ),
            (
                "SAGA118",
                "a hold while undoing",
                "id: a, uses: shop.book, compensate: {uses: outbox.emit, "
                "with: {connection: shop, topic: t, value: 1, hold: ⟦true}}",
            ),
            ("SAGA414", "dropping what is not held", "id: a, uses: shop.book, compensate: ⟦outbox.drop"),
            (
                "SAGA414",
                "dropping at the commit point",
                "id: a, uses: outbox.emit, with: {connection: shop, topic: t, value: 1, hold: true}, "
                "confirm: ⟦outbox.drop",
            ),
        )
    ),
    Mistake(
        "SAGA412",
        "events for Kafka without a database",
        saga("  - {id: a, uses: ⟦kafka.publish, with: {topic: t, value: 1}, pivot: true}\n"),
        kafka=KafkaResources(),
    ),
    Mistake(
        "SAGA405",
        "events for Kafka in a database that is none",
        saga("  - {id: a, uses: ⟦kafka.publish, with: {topic: t, value: 1}, pivot: true}\n"),
        kafka=KafkaResources("crm"),
    ),
    Mistake(
        "SAGA412",
        "a command without a database",
        saga("  - {id: a, uses: ⟦kafka.request, with: {topic: t, value: 1}, pivot: true}\n"),
        kafka=KafkaResources(),
    ),
    *(
        Mistake(code, about, saga(f"  - {{id: a, uses: kafka.request, {rest}, pivot: true}}\n"))
        for code, about, rest in (
            (
                "SAGA415",
                "a reply topic that is an expression",
                "with: {topic: t, value: 1, reply_topic: ⟦'${{ saga.id }}'}",
            ),
            ("SAGA402", "a command without a topic", "with: ⟦{value: 1}"),
            ("SAGA416", "a header of the engine's own", "with: {topic: t, value: 1, headers: {⟦sagakey: x}}"),
            ("SAGA404", "a command to a topic that is none", "with: {topic: ⟦a/b, value: 1}"),
            ("SAGA404", "a reply topic that is none", "with: {topic: t, value: 1, reply_topic: ⟦a/b}"),
            ("SAGA118", "a request that beats", "with: {topic: t, value: 1}, ⟦heartbeat: 5s"),
            ("SAGA118", "a request that is said to be repeated", "with: {topic: t, value: 1}, ⟦idempotent: false"),
        )
    ),
    *(
        Mistake(
            "SAGA418",
            about,
            saga(
                "  - id: a\n    uses: http\n"
                f"    with: {{connection: {connection}, method: POST, path: /a, headers: {{X-Mine: x, {header}}}}}\n"
                "    compensate: {uses: shop.tell, with: {}}\n"
            ),
            also=("SAGA221",),
        )
        for about, connection, header in (
            ("the key", "crm", "⟦idempotency-key: mine"),
            ("the host", "old", "⟦Host: elsewhere"),
            ("the undone key", "old", "⟦Saga-Undoes: k"),
        )
    ),
    *(
        Mistake("SAGA107", f"the signal {name}", saga(f"  - {{id: a, uses: wait, with: ⟦{{signal: {name}}}}}\n" + BOOK))
        for name in ("saga-cancel", "saga-parked", "saga-locks", "__temporal_x")
    ),
    Mistake(
        "SAGA305",
        "the result of a request that nobody may know",
        saga(
            "  - id: a\n    uses: kafka.request\n    with: {topic: t, value: 1}\n    compensate:\n"
            '      uses: kafka.request\n      with: {topic: t, value: "${{ ⟦steps.a.result.id }}"}\n'
        ),
    ),
]
