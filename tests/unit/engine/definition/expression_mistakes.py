"""Wrong definitions whose expressions are at fault (SAGA3xx)."""

from __future__ import annotations

from tests.unit.engine.definition.mistake import BOOK, EACH, INPUT, NOTIFY, RESERVE, TOLD, Mistake, saga

_ROWS = "  - {id: rows, uses: sql, pivot: true, with: {connection: shop, run: insert into a values (1) returning id}}\n"
_STORED = _ROWS + "  - {id: a, uses: sql, with: {connection: shop, run: 'select :x', params: {x: VALUE}}}\n"
_SIZES = "input: {type: object, required: [size], properties: {size: {enum: [s, m, l]}}}\n"

EXPRESSION_MISTAKES = [
    Mistake("SAGA301", "syntax", saga(BOOK, 'output: "${{ input.⟦.a }}"\n')),
    Mistake("SAGA301", "not closed", saga(BOOK, 'output: "⟦${{ input.a"\n')),
    Mistake("SAGA302", "an unknown name", saga(BOOK, 'output: "${{ ⟦inputs.name }}"\n')),
    Mistake("SAGA308", "a misspelt variable", saga(BOOK, 'output: "${{ ⟦vars.limti }}"\n'), vars=("limit",)),
    Mistake("SAGA308", "a variable where there are none", saga(BOOK, 'output: "${{ ⟦vars.limit }}"\n'), vars=()),
    Mistake("SAGA302", "an unknown function", saga(BOOK, 'output: "${{ ⟦summ([1]) }}"\n')),
    Mistake("SAGA302", "an undeclared input", saga(BOOK, INPUT + 'output: "${{ ⟦input.nam }}"\n')),
    *(
        Mistake(
            "SAGA311",
            f"a path as text {text}",
            saga(_STORED.replace("VALUE", text), INPUT),
            also=("SAGA121",),
            vars=("limit",),
        )
        for text in (
            "⟦input.name",
            "'⟦{{ input.name }}'",
            "'order ⟦${input.name} of'",
            "⟦vars.limit",
            "⟦steps.rows.result",
            "'⟦input.lines[0]'",
        )
    ),
    *(
        Mistake("SAGA302", f"rows as {text}", saga(_STORED.replace("VALUE", f"'${{{{ {text} }}}}'"), INPUT))
        for text in (
            "⟦steps.rows.result.id",
            "⟦steps.rows.result[0].nr",
            "default(⟦steps.rows.result.id, 1)",
            "⟦input.lines.sku",
            "⟦input.lines[0].skuu",
        )
    ),
    *(
        Mistake(
            "SAGA312",
            f"never {text}",
            saga(f"{_ROWS}  - {{id: a, uses: shop.tell, if: '{text}'}}\n", _SIZES),
            also=(),
        )
        for text in (
            'steps.rows.state == ⟦"done"',
            '⟦"done" != steps.rows.state',
            'steps.rows.state in ["DONE", ⟦"SKIPED"]',
            'input.size == ⟦"xl"',
        )
    ),
    Mistake(
        "SAGA313",
        "a number as a condition",
        saga(
            f"{BOOK}  - {{id: a, uses: shop.tell, effect: none, if: ⟦input.n}}\n",
            "input: {required: [n], properties: {n: {type: integer}}}\n",
        ),
    ),
    Mistake(
        "SAGA313",
        "a text as a requirement",
        saga(
            "  - {id: a, uses: require, with: {that: ⟦input.t}}\n",
            "input: {required: [t], properties: {t: {type: string}}}\n",
        ),
    ),
    Mistake(
        "SAGA313",
        "a number as the condition of a finish",
        saga("  - {id: a, uses: finish, with: {when: ⟦1 + 1}}\n" + BOOK),
    ),
    Mistake(
        "SAGA314",
        "a refusal that reads a field which an answer may not have",
        saga(
            "  - {id: a, uses: http, pivot: true, with: {connection: crm, path: /a, method: POST,"
            " rejected_when: ⟦response.json.status == 'no'}}\n"
        ),
        ("SAGA220",),
    ),
    Mistake(
        "SAGA302",
        "a refusal that reads the input",
        saga(
            "  - {id: a, uses: http, pivot: true, with: {connection: crm, path: /a, method: POST,"
            " rejected_when: ⟦input.n}}\n"
        ),
        ("SAGA220",),
    ),
    Mistake("SAGA302", "an unknown step", saga(BOOK, 'output: "${{ ⟦steps.bok.result }}"\n')),
    Mistake("SAGA302", "a field no step has", saga(BOOK, 'output: "${{ ⟦steps.book.reslt }}"\n')),
    Mistake("SAGA302", "results without for_each", saga(BOOK, 'output: "${{ ⟦steps.book.results }}"\n')),
    Mistake(
        "SAGA302",
        "item without for_each",
        saga("  - {id: a, uses: shop.reserve, with: {sku: '${{ ⟦item.sku }}'}, pivot: true}\n"),
    ),
    Mistake(
        "SAGA302",
        "an item without the field",
        saga(
            "  - id: a\n    uses: shop.reserve\n    for_each: ${{ input.lines }}\n"
            "    with: {sku: '${{ ⟦item.skuu }}'}\n    compensate: shop.release\n",
            INPUT,
        ),
    ),
    Mistake(
        "SAGA302",
        "the reason in a forward action",
        saga("  - {id: a, uses: shop.reserve, with: {sku: '${{ ⟦saga.reason.kind }}'}, pivot: true}\n"),
    ),
    *(
        Mistake(
            "SAGA302",
            f"{field} in an undo",
            saga(
                "  - id: a\n    uses: shop.reserve\n    with: {sku: a}\n"
                f"    compensate: {{uses: shop.release, with: {{sku: '${{{{ ⟦{field} }}}}'}}}}\n"
            ),
        )
        for field in ("saga.reason.step_id", "saga.reason.message.text", "saga.id.text", "step.key.text")
    ),
    Mistake(
        "SAGA302",
        "a reason that a notification does not have",
        saga(BOOK, NOTIFY.format(one=TOLD.format(it="⟦saga.reason.text"))),
    ),
    Mistake(
        "SAGA302",
        "a field that no response has",
        saga("  - {id: a, uses: http, with: {url: 'http://a', result: ⟦response.body}}\n"),
    ),
    Mistake(
        "SAGA302",
        "a field of a response's status",
        saga("  - {id: a, uses: http, with: {url: 'http://a', result: ⟦response.status.code}}\n"),
    ),
    Mistake("SAGA302", "steps in the id", saga(BOOK, 'id: "a-${{ ⟦steps.book.result }}"\n')),
    Mistake(
        "SAGA302",
        "input in the result of http",
        saga("  - {id: a, uses: http, with: {url: 'http://a', result: ⟦input.a}}\n"),
    ),
    Mistake(
        "SAGA303",
        "a later step",
        saga("  - {id: a, uses: shop.tell, effect: none, if: '⟦steps.book.state == \"DONE\"'}\n" + BOOK),
    ),
    Mistake(
        "SAGA303",
        "a sibling",
        saga(
            RESERVE + "  - {id: b, uses: shop.reserve, needs: [], with: {sku: '${{ ⟦steps.reserve.result }}'},\n"
            "     compensate: shop.release}\n"
        ),
    ),
    Mistake("SAGA304", "a text plus a number", saga(BOOK, INPUT + 'output: "${{ ⟦input.price * 2 }}"\n')),
    Mistake(
        "SAGA302",
        "a field the result does not have",
        saga("  - {id: a, uses: shop.price, pivot: true}\n", 'output: "${{ ⟦steps.a.result.amuont }}"\n'),
    ),
    Mistake(
        "SAGA305",
        "a skipped step",
        saga("  - {id: a, uses: shop.tell, effect: none, if: 'true'}\n" + BOOK, 'output: "${{ ⟦steps.a.result }}"\n'),
    ),
    Mistake(
        "SAGA305",
        "its own unknown result",
        saga(
            "  - id: a\n    uses: bank.charge\n    with: {amount: '1'}\n"
            "    compensate: {uses: bank.refund, with: {amount: '${{ ⟦steps.a.result.amount }}'}}\n"
        ),
    ),
    Mistake(
        "SAGA309",
        "an optional property",
        saga(
            "  - {id: a, uses: shop.reserve, with: {sku: '${{ ⟦input.lines[0].sku }}'}, compensate: shop.release}\n",
            INPUT,
        ),
    ),
    Mistake(
        "SAGA309",
        "an optional property of an item",
        saga(
            "  - id: a\n    uses: shop.reserve\n    for_each: ${{ input.lines }}\n"
            "    with: {sku: '${{ ⟦item.sku }}'}\n    compensate: shop.release\n",
            INPUT,
        ),
    ),
    Mistake(
        "SAGA310",
        "an optional property in an undo",
        saga(
            "  - id: a\n    uses: shop.reserve\n    with: {sku: a}\n"
            "    compensate: {uses: shop.release, with: {sku: '${{ ⟦input.lines[0].sku }}'}}\n",
            INPUT,
        ),
    ),
    Mistake(
        "SAGA310", "an optional property in the output", saga(BOOK, INPUT + 'output: "${{ ⟦input.lines[0].sku }}"\n')
    ),
    Mistake(
        "SAGA310",
        "a result after the pivot that may be null",
        saga(
            "  - {id: a, uses: shop.reserve, with: {sku: a}, if: input.count > 1, compensate: shop.release}\n"
            + BOOK
            + "  - {id: told, uses: shop.price, effect: none, if: '⟦steps.a.result.n > 1'}\n",
            INPUT,
        ),
        also=("SAGA103",),
    ),
    Mistake(
        "SAGA301",
        "a condition that does not parse, and what follows from it",
        saga(
            "  - {id: a, uses: shop.reserve, with: {sku: '${{ input.lines[0].sku }}'}, if: input.count > 1 ⟦and true,\n"
            "     compensate: {uses: shop.release, with: {sku: '${{ input.lines[0].sku }}'}}}\n"
            + "  - {id: b, uses: shop.tell, pivot: true}\n",
            INPUT + "output: '${{ steps.a.result.id }}'\n",
        ),
    ),
    Mistake(
        "SAGA112",
        "a schema that cannot be read, and what follows from it",
        saga(BOOK, "input: {properties: {n: {type: string, required: ⟦true}}}\noutput: '${{ input.n }}'\n"),
    ),
    Mistake("SAGA304", "a division by zero", saga(BOOK, INPUT + 'output: "${{ ⟦input.count / 0 }}"\n')),
    Mistake("SAGA306", "for_each over text", saga(EACH.format("${{ input.name }}"), INPUT)),
    Mistake("SAGA306", "for_each over a text around", saga(EACH.format("a${{ input.lines }}"), INPUT)),
    Mistake("SAGA306", "for_each over a number", saga(EACH.format("${{ size(input.lines) }}"), INPUT)),
    *(
        Mistake(
            "SAGA307",
            about,
            saga(
                f"  - id: a\n    uses: http\n    with: {{connection: crm, {forward}}}\n"
                f"    compensate: {{uses: http, with: {{connection: crm, {undo}}}}}\n"
            ),
        )
        for about, forward, undo in (
            (
                "an undo under its own key",
                "method: POST, path: /holds, json: {id: '${{ step.key }}'}",
                "method: DELETE, path: '/holds/${{ ⟦step.key }}'",
            ),
            (
                "an undo of what the header named",
                "method: POST, path: /holds",
                "method: DELETE, path: /holds, query: {key: '${{ ⟦step.key }}'}",
            ),
            (
                "an undo that sends its own key",
                "method: POST, path: /holds, json: {id: '${{ step.key }}'}",
                "method: POST, path: /holds/cancel, json: {id: '${{ ⟦step.key }}'}",
            ),
            (
                "an undo that writes to its own key",
                "method: PUT, path: '/holds/${{ step.key }}'",
                "method: PUT, path: '/holds/${{ ⟦step.key }}', json: {open: false}",
            ),
        )
    ),
    Mistake(
        "SAGA307",
        "a confirm that sends its own key",
        saga(
            "  - id: a\n    uses: http\n    with: {connection: crm, method: PUT, path: '/holds/${{ step.key }}'}\n"
            "    compensate: {uses: shop.tell, with: {}}\n"
            "    confirm: {uses: http, with: {connection: crm, method: POST, path: '/holds/${{ ⟦step.key }}/ok'}}\n"
        ),
    ),
    Mistake(
        "SAGA315",
        "a request with the start of the saga",
        saga(
            "  - id: a\n    uses: http\n    with: {connection: crm, method: POST, path: /a,"
            " json: {at: '${{ string(⟦saga.started_at) }}'}}\n"
            "    compensate: {uses: http, with: {connection: crm, method: POST, path: /b}}\n"
        ),
    ),
    Mistake(
        "SAGA315",
        "a request with the whole saga",
        saga(
            "  - id: a\n    uses: http\n    with: {connection: crm, method: POST, path: /a,"
            " json: {at: '${{ ⟦saga }}'}}\n"
            "    compensate: {uses: http, with: {connection: crm, method: POST, path: /b}}\n"
        ),
    ),
    Mistake(
        "SAGA315",
        "a request with the start of the saga from a list",
        saga(
            "  - id: a\n    uses: http\n    with: {connection: crm, method: POST, path: /a,"
            " json: {at: '${{ [⟦saga].map(s, string(s.started_at))[0] }}'}}\n"
            "    compensate: {uses: http, with: {connection: crm, method: POST, path: /b}}\n"
        ),
    ),
    Mistake(
        "SAGA315",
        "a request with the start of the saga that a step passes on",
        saga(
            "  - id: p\n    uses: pass\n    with: {result: {at: '${{ string(saga.started_at) }}', other: 1}}\n"
            "  - id: a\n    uses: http\n    with: {connection: crm, method: POST, path: /a,"
            " json: {at: '${{ ⟦steps.p.result.at }}'}}\n"
            "    compensate: {uses: http, with: {connection: crm, method: POST, path: /b}}\n"
        ),
    ),
    Mistake(
        "SAGA307",
        "a row under its own key",
        saga(
            "  - id: a\n    uses: sql\n    with:\n      connection: shop\n"
            "      run: {sql: insert into hold values (:id), params: {id: '${{ step.key }}'}}\n"
            "    compensate:\n      uses: sql\n      with:\n        connection: shop\n"
            "        run: {sql: delete from hold where id = :id, params: {id: '${{ ⟦step.key }}'}}\n"
        ),
    ),
]
