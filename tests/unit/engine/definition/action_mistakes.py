"""Wrong definitions about actions and their arguments: one per row."""

from __future__ import annotations

from tests.unit.engine.definition.mistake import (
    BOOK,
    NOTIFY,
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
        Mistake(
            "SAGA406",
            about,
            saga(
                "  - id: a\n    uses: spark\n    with:\n      inputs: {i: {connection: shop, query: '"
                f"{query}'}}}}\n      sql: {job}\n      output: {{parquet: x}}\n"
            ),
        )
        for about, query, job in (
            ("an input that changes rows", "⟦delete from room", "select * from i"),
            ("an input that is not a query", "⟦call tidy()", "select * from i"),
            ("a job that writes a table", "select 1", "⟦insert into lake.s.t select * from i"),
        )
    ),
    Mistake(
        "SAGA428",
        "an order by a parameter",
        saga(
            "  - {id: a, uses: sql, effect: none,\n"
            "     with: {connection: shop, run: 'select 1 from t order by n, ⟦:x desc', params: {x: n}}}\n"
        ),
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
        "SAGA431",
        "a list as an element of `in`",
        "saga: shop\ninput: {type: object, required: [ids], properties: {ids: {type: array}}}\nsteps:\n"
        "  - {id: a, uses: sql, effect: none, with: {connection: shop, run: 'select id from t where id in (⟦:ids)',\n"
        "     params: {ids: '${{ input.ids }}'}}}\n",
    ),
    Mistake(
        "SAGA431",
        "a list in an undo",
        saga(
            "  - {id: a, uses: sql, with: {connection: shop, run: select 1},\n     compensate: {uses: sql, with: "
            "{connection: shop, run: {sql: 'delete from t where a in (1, ⟦:a)', params: {a: [1]}}}}}\n"
        ),
    ),
    Mistake(
        "SAGA429",
        "a division of a number",
        "saga: shop\ninput: {type: object, required: [x], properties: {x: {type: number}}}\nsteps:\n"
        "  - {id: a, uses: sql, pivot: true, with: {connection: shop, run: 'insert into t values (⟦:x / 3)',\n"
        "     params: {x: '${{ input.x }}'}}}\n",
    ),
    Mistake(
        "SAGA429",
        "a division on the connection of defaults",
        "saga: shop\ninput: {type: object, required: [x], properties: {x: {type: number}}}\n"
        "defaults: {connection: shop}\nsteps:\n"
        "  - {id: a, uses: sql, pivot: true, with: {run: 'insert into t values (⟦:x / 3)',\n"
        "     params: {x: '${{ input.x }}'}}}\n",
    ),
    Mistake(
        "SAGA429",
        "a division of a column of a common table expression",
        "saga: shop\ninput: {type: object, required: [x], properties: {x: {type: number}}}\nsteps:\n"
        "  - {id: a, uses: sql, pivot: true, with: {connection: shop, params: {x: '${{ input.x }}'},\n"
        "     run: 'with w as (select ⟦:x as n) update t set v = w.n / 3 from w'}}\n",
    ),
    Mistake(
        "SAGA429",
        "a division of a product",
        "saga: shop\ninput: {type: object, required: [x], properties: {x: {type: number}}}\nsteps:\n"
        "  - {id: a, uses: sql, pivot: true, with: {connection: shop, run: 'update t set v = (⟦:x + 1) * 2 / 3',\n"
        "     params: {x: '${{ input.x }}'}}}\n",
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
    *(
        Mistake("SAGA404", about, saga(f"  - {{id: a, uses: {call}}}\n"))
        for about, call in (
            ("a number out of range", "shop.pack, with: {boxes: [1, ⟦0]}, pivot: true"),
            ("a list with too many elements", "shop.pack, with: {boxes: ⟦[1, '${{ input.n }}', 3]}, pivot: true"),
            ("a frozen literal that the undo does not take", "shop.fetch, with: {n: few}, compensate: ⟦shop.count"),
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
            ("a port that is not a number", "https://host:abc/a"),
            ("a port above 65535", "https://host:65536/a"),
            ("the port 0", "https://host:0"),
            ("no host", "https:///a"),
            ("a bracket that is not closed", "https://[::1/a"),
        )
    ),
]
