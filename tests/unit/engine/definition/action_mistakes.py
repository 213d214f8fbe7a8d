"""Wrong definitions about actions, their arguments and Spark steps: one per row."""

from __future__ import annotations

from sagas.definition.parser.draft import KafkaResources, SparkResources
from tests.unit.engine.definition.mistake import (
    BOOK,
    NOTIFY,
    TOLD,
    Mistake,
    saga,
    spark,
)

_SQL = "uses: sql, with: {connection: shop,"
_LIST = f"{_SQL} run: [{{sql: select 1}}], ⟦expect_rows: 1}}"

_NUMBERS = "input: {required: [t, n], properties: {t: {type: string}, n: {type: integer}}}\n"

ACTION_MISTAKES = [
    # SAGA4xx: actions and arguments
    Mistake("SAGA401", "an unknown action", saga("  - {id: a, uses: ⟦shop.bok, pivot: true}\n")),
    Mistake("SAGA401", "an unknown compensation", saga("  - {id: a, uses: shop.book, compensate: ⟦shop.undo}\n")),
    Mistake("SAGA402", "no argument", saga("  - {id: a, uses: ⟦shop.reserve, pivot: true}\n")),
    Mistake(
        "SAGA402", "one argument short", saga("  - {id: a, uses: shop.reserve, with: ⟦{quantity: 1}, pivot: true}\n")
    ),
    Mistake("SAGA402", "sql without run", saga("  - {id: a, uses: sql, with: ⟦{connection: shop}, pivot: true}\n")),
    Mistake(
        "SAGA402",
        "the frozen arguments do not suffice",
        saga("  - {id: a, uses: shop.book, compensate: ⟦shop.release}\n"),
    ),
    Mistake("SAGA402", "neither path nor url", saga("  - {id: a, uses: http, with: ⟦{connection: crm}}\n")),
    Mistake(
        "SAGA402",
        "a host from data without a connection",
        saga("  - {id: a, uses: http, with: ⟦{url: 'https://${{ saga.id }}/a'}}\n"),
    ),
    Mistake("SAGA402", "wait for nothing", saga("  - {id: a, uses: wait, with: ⟦{}}\n")),
    Mistake(
        "SAGA403",
        "an unknown argument",
        saga("  - {id: a, uses: shop.reserve, with: {sku: a, ⟦quantty: 1}, pivot: true}\n"),
    ),
    Mistake(
        "SAGA403",
        "of a built-in action",
        saga("  - {id: a, uses: sql, with: {connection: shop, run: select 1, ⟦parms: {}}, pivot: true}\n"),
    ),
    *(
        Mistake("SAGA403", f"misspelled: {step}", saga(f"  - {{id: a, {step}, pivot: true}}\n"))
        for step in (
            "uses: sql, with: {connection: shop, run: 'select :x', ⟦parms: {x: 1}}",
            "uses: sql, with: {connection: shop, ⟦runs: select 1}",
            "uses: shop.reserve, with: {⟦skus: a}",
        )
    ),
    Mistake(
        "SAGA404",
        "a text for a number",
        saga("  - {id: a, uses: shop.reserve, with: {sku: a, quantity: ⟦many}, pivot: true}\n"),
    ),
    *(
        Mistake(code, about, saga(f"  - {{id: a, uses: {step}, pivot: true}}\n"))
        for code, about, step in (
            ("SAGA402", "an argument that Python calls from_", "shop.move, with: ⟦{to: b}"),
            ("SAGA113", "an argument under both its names", "shop.move, with: {from: a, ⟦from_: a, to: b}"),
            ("SAGA404", "a text for a number among any others", "shop.note, with: {id: a, size: ⟦big}"),
            ("SAGA403", "an argument that the engine gives", "shop.note, with: {id: a, ⟦step: 1}"),
            ("SAGA402", "a named argument beside any others", "shop.note, with: ⟦{size: 1}"),
        )
    ),
    Mistake(
        "SAGA107",
        "an argument of the engine's own",
        saga("  - {id: a, uses: loyalty.add, task_queue: loyalty, effect: none, with: {⟦_saga: 1}}\n"),
    ),
    Mistake(
        "SAGA404",
        "in a statement",
        saga(
            "  - id: a\n    uses: sql\n    pivot: true\n"
            "    with: {connection: shop, run: [{sql: select 1, expect_rows: ⟦one}]}\n"
        ),
    ),
    *(
        Mistake("SAGA427", about, saga(f"  - {{id: a, {step}}}\n{more}"), also=("SAGA221", "SAGA222"))
        for about, step, more in (
            ("rows of a list", f"{_SQL} run: [{{sql: select 1}}], ⟦expect_rows: 1}}, pivot: true", ""),
            ("a message of a list", f"{_SQL} run: [{{sql: select 1}}], ⟦rejected: gone}}, pivot: true", ""),
            ("parameters of a list", f"{_SQL} run: [{{sql: select 1}}], ⟦params: {{}}}}, pivot: true", ""),
            (
                "rows that are computed",
                f"{_SQL} run: [{{sql: select 1}}], ⟦expect_rows: '${{{{ 1 }}}}'}}, pivot: true",
                "",
            ),
            (
                "rows written twice",
                f"{_SQL} run: {{sql: select 1, expect_rows: 1}}, ⟦expect_rows: 1}}, pivot: true",
                "",
            ),
            ("a message without rows", f"{_SQL} run: select 1, ⟦rejected: gone}}, pivot: true", ""),
            ("a message in a list", f"{_SQL} run: [{{sql: select 1, ⟦rejected: gone}}]}}, pivot: true", ""),
            ("in a compensation", f"uses: shop.book, compensate: {{{_LIST}}}", ""),
            (
                "in a compensation after confirm",
                f"uses: shop.book, compensate: {{uses: shop.tell, confirmed: {{{_LIST}}}}}, confirm: shop.tell",
                "",
            ),
            ("in a confirm", f"uses: shop.book, compensate: shop.tell, confirm: {{{_LIST}}}", ""),
            ("in a probe", f"uses: bank.blind, compensate: shop.tell, probe: {{{_LIST}}}", ""),
            ("in a check", f"uses: shop.tell, check: {{{_LIST}}}, pivot: true", ""),
            ("in a notification", "uses: shop.tell, pivot: true", f"notify:\n  - {{when: parked, {_LIST}}}\n"),
            ("of two phases", f"{_SQL} two_phase: true, run: [{{sql: delete from a}}], ⟦expect_rows: 1}}", ""),
            ("with automatic undo", f"{_SQL} run: [{{sql: delete from a}}], ⟦expect_rows: 1}}, compensate: auto", ""),
            ("a body of a read", "uses: http, with: {connection: crm, path: /a, ⟦json: {}}", ""),
            ("a limit without time", "uses: wait, with: {signal: paid, ⟦on_timeout: park}", ""),
        )
    ),
    *(
        Mistake("SAGA427", about, spark(arguments))
        for about, arguments in (
            ("rows of an output", "output: {table: lake.a.b, ⟦where: {day: 1}}"),
            ("the value of a table", "output: {table: lake.a.b, ⟦value: a}"),
            ("partitions of a database", "output: {connection: shop, table: a, ⟦partition_by: a}"),
            ("a time of files", "output: {table: lake.a.b}, inputs: {a: {parquet: /a, ⟦as_of: 1}}"),
            ("a time of a table", "output: {table: lake.a.b}, inputs: {a: {table: lake.a.b, ⟦since: '2026-01-01'}}"),
            ("a condition of a query", "output: {table: lake.a.b}, audit: [{sql: select 1, ⟦where: a = 1}]"),
        )
    ),
    Mistake(
        "SAGA405", "unknown", saga("  - {id: a, uses: sql, with: {connection: ⟦shp, run: select 1}, pivot: true}\n")
    ),
    Mistake(
        "SAGA406",
        "a change of the schema",
        saga("  - {id: a, uses: sql, with: {connection: shop, run: ⟦drop table x}, pivot: true}\n"),
    ),
    Mistake(
        "SAGA406",
        "transaction control in an undo",
        saga(
            "  - {id: a, uses: sql, with: {connection: shop, run: select 1},\n"
            "     compensate: {uses: sql, with: {connection: shop, run: {sql: '⟦/* x */ commit'}}}}\n"
        ),
    ),
    Mistake(
        "SAGA406",
        "several statements in one text",
        saga("  - {id: a, uses: sql, with: {connection: shop, run: [{sql: select 1; ⟦select 2}]}, pivot: true}\n"),
    ),
    *(
        Mistake(code, about, saga(f"  - id: a\n    uses: sql\n    pivot: true\n    with:\n{run}"))
        for code, about, run in (
            (
                "SAGA425",
                "a comment in folded lines",
                "      connection: shop\n      params: {sku: a}\n      run: >-\n"
                "        update stock set free = free - 1\n\n"
                "        where place = 'x' ⟦-- take one\n        and sku = :sku\n",
            ),
            (
                "SAGA425",
                "a comment in folded lines before others",
                "      connection: shop\n      run: >\n        select 1 from stock ⟦-- all\n        where free > 0\n\n"
                "        for update\n",
            ),
            (
                "SAGA425",
                "a comment in one line",
                "      connection: shop\n      run: delete from stock ⟦-- where sku = 1\n",
            ),
            (
                "SAGA406",
                "a string that is not closed",
                "      connection: shop\n      run: |\n        select 1,\n        ⟦'a\n",
            ),
            ("SAGA406", "a placeholder of a driver", "      connection: shop\n      run: 'select ⟦$1'\n"),
            (
                "SAGA426",
                "a parameter that no statement uses",
                "      connection: shop\n      run: update stock set free = 1 where sku = 'it''s :sku'\n"
                "      params: {⟦sku: a}\n",
            ),
            (
                "SAGA426",
                "a placeholder without a parameter",
                "      connection: shop\n      run: |\n"
                "        update stock set free = 1\n        where sku = ⟦:sku::text\n"
                "          and place = :place\n      params: {place: a}\n",
            ),
        )
    ),
    Mistake(
        "SAGA426",
        "a placeholder in an undo",
        saga(
            "  - {id: a, uses: sql, with: {connection: shop, run: select 1},\n"
            "     compensate: {uses: sql, with: {connection: shop, run: {sql: 'delete from t where a = ⟦:a'}}}}\n"
        ),
    ),
    Mistake(
        "SAGA426",
        "a placeholder in a notification",
        saga(BOOK, NOTIFY.format(one="uses: sql, with: {connection: shop, run: 'insert into t values (⟦:a)'}")),
    ),
    Mistake(
        "SAGA426",
        "a cast in the SQL of an input",
        spark("output: {table: lake.s.t}, inputs: {i: {connection: shop, query: 'select ⟦:day::date'}}"),
    ),
    Mistake(
        "SAGA426",
        "a placeholder of a Spark job",
        spark("output: {table: lake.s.t}, audit: [{sql: 'select 1 where ⟦:a = 1'}]"),
    ),
    Mistake("SAGA426", "an unused parameter of a Spark job", spark("output: {table: lake.s.t}, params: {⟦a: 1}")),
    Mistake(
        "SAGA426",
        "a placeholder in the filter of a check",
        spark("output: {table: lake.s.t}, params: {}, audit: [{rows: {min: 1}, where: 'a = ⟦:a'}]"),
    ),
    Mistake(
        "SAGA405",
        "of another kind",
        saga("  - {id: a, uses: sql, with: {connection: ⟦crm, run: select 1}, pivot: true}\n"),
    ),
    Mistake(
        "SAGA405",
        "an expression",
        saga(
            "  - {id: a, uses: sql, with: {connection: '⟦${{ input.c }}', run: select 1}, pivot: true}\n".replace(
                "'⟦", "⟦'"
            )
        ),
    ),
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
    # SAGA900: later parts
    Mistake("SAGA900", "schedule", saga(BOOK, "triggers: {⟦schedule: {cron: '0 3 * * *'}}\n")),
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
    Mistake(
        "SAGA900", "callback", saga("  - {id: a, uses: http, with: {url: 'http://a', ⟦callback: {timeout: 1m}}}\n")
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
    Mistake(
        "SAGA305",
        "the result of a request that nobody may know",
        saga(
            "  - id: a\n    uses: kafka.request\n    with: {topic: t, value: 1}\n    compensate:\n"
            '      uses: kafka.request\n      with: {topic: t, value: "${{ ⟦steps.a.result.id }}"}\n'
        ),
    ),
    # SAGA42x: values that become code or names
    *(
        Mistake("SAGA420", about, saga(f"  - {{id: a, effect: none, uses: sql, with: {{connection: shop, {run}}}}}\n"))
        for about, run in (
            ("an expression in a statement", "run: \"delete from t where a = '${{ ⟦saga.id }}'\""),
            ("a statement that is an expression", "run: {sql: '${{ ⟦saga.id }}'}"),
            ("an expression in the second statement", "run: [{sql: select 1}, {sql: 'select ${{ ⟦saga.id }}'}]"),
        )
    ),
    Mistake(
        "SAGA420",
        "an expression in the SQL of a probe",
        saga(
            "  - id: a\n    uses: bank.blind\n    pivot: true\n    probe:\n      uses: sql\n      with: "
            '{connection: shop, run: \'select ${{ ⟦saga.id }}\'}\n      done: "true"\n      absent: "false"\n'
        ),
    ),
    Mistake(
        "SAGA420",
        "an expression in the SQL of a notification",
        saga(
            BOOK,
            NOTIFY.format(one='uses: sql, with: {connection: shop, run: "insert into t values (${{ ⟦saga.id }})"}'),
        ),
    ),
    *(
        Mistake(code, about, spark(f"output: {{parquet: out}}, {arguments}"))
        for code, about, arguments in (
            ("SAGA420", "in a query", "inputs: {i: {connection: shop, query: 'select ${{ ⟦saga.id }}'}}"),
            (
                "SAGA420",
                "in a condition",
                "inputs: {i: {connection: shop, table: t, where: \"a = '${{ ⟦saga.id }}'\"}}",
            ),
            ("SAGA420", "in a check", "audit: [{expression: 'a > ${{ ⟦saga.id }}'}]"),
            (
                "SAGA420",
                "in the other side of a check",
                "audit: [{reconcile: {key: a, with: {connection: shop, query: 'select ${{ ⟦saga.id }}'}}}]",
            ),
            ("SAGA421", "a computed table", "inputs: {i: {connection: shop, table: 't_${{ ⟦saga.id }}'}}"),
            ("SAGA421", "a computed path", "inputs: {i: {parquet: '${{ ⟦saga.id }}/x'}}"),
            ("SAGA421", "a computed setting", "conf: {spark.jars: '${{ ⟦saga.id }}'}"),
            ("SAGA422", "a computed input", "inputs: {i: '${{ ⟦{\"parquet\": saga.id} }}'}"),
            ("SAGA408", "an input without a source", "inputs: {i: ⟦{query: select 1}}"),
            ("SAGA408", "parameters of files", "inputs: {i: {parquet: x, params: ⟦{a: 1}}}"),
        )
    ),
    Mistake(
        "SAGA421",
        "a computed job",
        saga("  - {id: a, uses: spark, with: {job: '${{ ⟦saga.id }}', output: {parquet: out}}}\n"),
    ),
    Mistake(
        "SAGA421",
        "a computed program",
        saga("  - {id: a, uses: spark, with: {job: {main: '${{ ⟦saga.id }}.py'}, output: {parquet: out}}}\n"),
    ),
    Mistake(
        "SAGA420",
        "a filter",
        saga(
            "  - {id: a, uses: reconcile, with: {key: a, left: {parquet: x}, right: {parquet: y}, "
            "filter: 'a = ${{ ⟦saga.id }}'}}\n"
        ),
    ),
    *(
        Mistake("SAGA404", about, saga(f"  - {{id: a, uses: {call}, pivot: true}}\n", _NUMBERS))
        for about, call in (
            ("a computed text for a number", "shop.count, with: {n: ⟦\"${{ 'abc' }}\"}"),
            ("a text with an expression for a number", "shop.count, with: {n: ⟦'${{ input.n }}0'}"),
            ("a property that is text for a number", "shop.count, with: {n: ⟦'${{ input.t }}'}"),
            ("a computed fraction for a list", "shop.count, with: {n: ⟦'${{ [1] }}'}"),
            ("a number for text", "shop.reserve, with: {sku: ⟦'${{ input.n }}'}"),
            ("a truth inside a mapping", "shop.count, with: {n: 1, sizes: {width: ⟦'${{ input.n > 1 }}'}}"),
        )
    ),
    Mistake(
        "SAGA404",
        "frozen arguments that the undo takes in another type",
        saga("  - {id: a, uses: shop.fetch, with: {n: '${{ input.t }}'}, compensate: ⟦shop.count}\n", _NUMBERS),
    ),
    *(
        Mistake("SAGA404", about, saga(f"  - {{id: a, uses: http, with: {{method: GET, url: ⟦'{url}'}}}}\n"))
        for about, url in (
            ("a space in the host", "https://h ost/a"),
            ("a space behind the host", "https://host/a b"),
            ("a port that is no number", "https://host:abc/a"),
            ("a port above 65535", "https://host:65536/a"),
            ("the port 0", "https://host:0"),
            ("no host", "https:///a"),
            ("a bracket that is not closed", "https://[::1/a"),
        )
    ),
]
