"""Wrong definitions whose fields, values or input schema are at fault (SAGA1xx)."""

from __future__ import annotations

from tests.unit.engine.definition.mistake import BOOK, INPUT, RESERVE, TELL, WAIT, Mistake, saga

QUEUE = "task_queue: ⟦'${{ vars.queue }}'"

STRUCTURE_MISTAKES = [
    Mistake("SAGA100", "broken YAML", "saga: shop\nsteps: [⟦:\n  - a\n"),
    Mistake("SAGA100", "an empty file", "⟦"),
    Mistake("SAGA100", "two documents", f"{saga(BOOK)}⟦---\nsaga: other\n"),
    Mistake("SAGA100", "an anchor that is not there", saga("  - ⟦*nobody\n")),
    Mistake("SAGA100", "an anchor inside itself", "saga: shop\nx-a: &a [⟦*a]\n"),
    Mistake("SAGA100", "a tag", saga("  - {id: a, uses: ⟦!python/name:os.system x}\n")),
    Mistake("SAGA100", "not a number", "saga: shop\nx-a: ⟦.inf\n"),
    Mistake("SAGA101", "braces", saga("  - id: book\n    uses: shop.reserve\n    with: {sku: ⟦${{ input.name }}}\n")),
    Mistake("SAGA101", "colon and blank", saga("  - id: book\n    uses: shop.book\n    if: ⟦${{ input.a ? 1 : 2 }}\n")),
    Mistake("SAGA101", "a comment", saga("  - id: book\n    uses: shop.book\n    if: ⟦${{ input.a #1 }}\n")),
    Mistake("SAGA101", "as a key", "saga: shop\noutput:\n  ⟦${{a: 1}}\n"),
    Mistake("SAGA102", "a key twice", f"saga: shop\n⟦saga: other\nsteps:\n{BOOK}"),
    Mistake("SAGA103", "may be rejected after the pivot", saga(BOOK + "  - {id: late, uses: ⟦shop.book}\n")),
    Mistake("SAGA104", "unknown top field", saga(BOOK, "⟦descripton: x\n")),
    Mistake("SAGA104", "unknown step field", saga("  - {id: book, uses: shop.book, ⟦pivott: true}\n")),
    Mistake("SAGA104", "a misspelled undo", saga("  - {id: a, uses: shop.tell, ⟦compensat: shop.tell}\n")),
    Mistake(
        "SAGA104", "unknown field of retry", saga("  - {id: a, uses: shop.book, pivot: true, retry: {⟦attempts: 3}}\n")
    ),
    Mistake("SAGA105", "no name", "⟦steps:\n" + BOOK),
    Mistake("SAGA105", "no uses", saga("  - ⟦{id: book}\n")),
    Mistake("SAGA105", "no steps", "⟦saga: shop\n"),
    Mistake("SAGA106", "steps is text", "saga: shop\nsteps: ⟦none\n"),
    Mistake("SAGA106", "no steps in the list", "saga: shop\nsteps: ⟦[]\n"),
    Mistake("SAGA106", "pivot is text", saga("  - {id: book, uses: shop.book, pivot: ⟦yes}\n"), ("SAGA205",)),
    Mistake("SAGA106", "another language", saga(BOOK, "language: ⟦2\n")),
    Mistake("SAGA106", "an unknown choice", saga("  - {id: a, uses: shop.book, pivot: true, on_failure: ⟦parkk}\n")),
    Mistake(
        "SAGA106",
        "too parallel",
        saga("  - {id: a, uses: shop.tell, for_each: [1], max_parallel: ⟦201, effect: none}\n"),
    ),
    Mistake("SAGA106", "too many labels", saga(BOOK, "labels: ⟦{" + ", ".join(f"l{n}: a" for n in range(11)) + "}\n")),
    Mistake(
        "SAGA106",
        "the longest wait is the shortest",
        saga("  - {id: a, uses: shop.book, pivot: true, retry: {initial_interval: 9s, max_interval: ⟦3s}}\n"),
    ),
    Mistake("SAGA107", "a capital in the name", f"saga: ⟦Shop\nsteps:\n{BOOK}"),
    Mistake("SAGA107", "a dash in an id", saga("  - {id: ⟦book-it, uses: shop.book, pivot: true}\n")),
    Mistake("SAGA107", "a reserved id", saga("  - {id: ⟦undo, uses: shop.book, pivot: true}\n")),
    *(
        Mistake("SAGA107", f"a task queue of {about}", saga(steps, top))
        for about, steps, top in (
            (
                "a step, computed",
                "  - {id: a, uses: shop.book, pivot: true, task_queue: ⟦'q-${{ input.name }}'}\n",
                INPUT,
            ),
            ("an undo, computed", f"  - {{id: a, uses: shop.tell, compensate: {{uses: shop.tell, {QUEUE}}}}}\n", ""),
            ("a confirm, computed", f"{RESERVE[:-2]}, confirm: {{uses: shop.tell, with: {{}}, {QUEUE}}}}}\n", ""),
            (
                "the undo of a confirmed step, computed",
                f"  - {{id: a, uses: shop.tell, confirm: shop.tell, "
                f"compensate: {{uses: shop.tell, confirmed: {{uses: shop.tell, {QUEUE}}}}}}}\n",
                "",
            ),
            ("defaults, computed", BOOK, f"defaults: {{{QUEUE}}}\n"),
            ("a notification, computed", BOOK, f"notify:\n  - {{when: parked, uses: shop.tell, {QUEUE}}}\n"),
            ("Temporal itself", "  - {id: a, uses: shop.book, pivot: true, task_queue: ⟦/_sys/q}\n", ""),
            ("many characters", f"  - {{id: a, uses: shop.book, pivot: true, task_queue: ⟦{'q' * 1001}}}\n", ""),
            ("two lines", '  - {id: a, uses: shop.book, pivot: true, task_queue: ⟦"a\\nb"}\n', ""),
        )
    ),
    Mistake("SAGA107", "a label name", saga(BOOK, "labels: {⟦a b: c}\n")),
    Mistake("SAGA108", "an id twice", saga(RESERVE + RESERVE.replace("id: reserve", "id: ⟦reserve"))),
    Mistake("SAGA109", "no unit", saga(BOOK, "deadline: ⟦90\n")),
    Mistake("SAGA109", "an unknown unit", saga(BOOK, "warn_after: ⟦3w\n")),
    Mistake("SAGA109", "nothing", saga("  - {id: a, uses: shop.book, pivot: true, timeout: ⟦0s}\n")),
    Mistake("SAGA112", "an unknown type", saga(BOOK, "input: {type: ⟦strin}\n")),
    Mistake("SAGA112", "a list", saga(BOOK, "input: ⟦[a]\n")),
    Mistake("SAGA112", "a schema elsewhere", saga(BOOK, "input: {$ref: ⟦'https://example.com/a.json'}\n")),
    Mistake("SAGA112", "a schema in a file", saga(BOOK, "input: {properties: {a: {$ref: ⟦'file:///etc/a.json'}}}\n")),
    Mistake("SAGA112", "a part that is not there", saga(BOOK, "input: {$ref: ⟦'#/$defs/a'}\n")),
    Mistake("SAGA119", "a lookahead", saga(BOOK, "input: {type: string, pattern: ⟦'^(?!a)'}\n")),
    Mistake("SAGA119", "a backreference", saga(BOOK, "input: {type: string, pattern: ⟦'(a+)\\1'}\n")),
    Mistake(
        "SAGA119", "a lookahead for names", saga(BOOK, "input: {patternProperties: {'^(?=a)': ⟦{type: string}}}\n")
    ),
    Mistake("SAGA112", "a pattern", saga(BOOK, "input: {type: string, pattern: ⟦'('}\n")),
    Mistake(
        "SAGA113",
        "intervals and initial_interval",
        saga("  - {id: a, uses: shop.book, pivot: true, retry: {initial_interval: 1s, ⟦intervals: [1s]}}\n"),
    ),
    Mistake(
        "SAGA113",
        "path and url",
        saga("  - {id: a, uses: http, with: ⟦{connection: crm, path: /a, url: 'http://a'}}\n"),
    ),
    Mistake("SAGA113", "two waits", saga("  - {id: a, uses: wait, with: ⟦{for: 1s, signal: go}}\n")),
    Mistake(
        "SAGA113", "a timeout without signal", saga("  - {id: a, uses: wait, with: ⟦{for: 1s, on_timeout: park}}\n")
    ),
    Mistake("SAGA114", "heartbeat", saga("  - {id: a, uses: shop.book, pivot: true, timeout: 10s, heartbeat: ⟦10s}\n")),
    Mistake(
        "SAGA114",
        "heartbeat of a compensation",
        saga("  - {id: a, uses: shop.book, compensate: {uses: shop.book, timeout: 5s, heartbeat: ⟦9s}}\n"),
    ),
    Mistake(
        "SAGA207",
        "a read that emits events",
        saga(
            "  - {id: a, effect: none, uses: sql, "
            "with: ⟦{connection: shop, run: select 1, emit: [{topic: t, value: 1}]}}\n"
        ),
    ),
    Mistake("SAGA115", "deadline and forward", saga(TELL, "recovery: forward\n⟦deadline: 1h\n")),
    Mistake("SAGA116", "local and unguarded", saga("  - {id: a, uses: bank.blind, effect: none, execution: ⟦local}\n")),
    Mistake("SAGA116", "local and slow", saga("  - {id: a, uses: shop.book, pivot: true, execution: ⟦local}\n")),
    Mistake(
        "SAGA116",
        "local with a queue",
        saga("  - {id: a, uses: shop.book, pivot: true, timeout: 5s, task_queue: q, execution: ⟦local}\n"),
    ),
    Mistake("SAGA117", "in a label", saga(BOOK, INPUT + 'labels: {card: "${{ ⟦input.card }}"}\n')),
    Mistake("SAGA117", "in the id", saga(BOOK, INPUT + 'id: "a-${{ ⟦input.card }}"\n')),
    Mistake(
        "SAGA117",
        "in the message of a rejection",
        saga("  - {id: a, uses: require, with: {that: 'true', message: \"no ${{ ⟦input.card }}\"}}\n" + BOOK, INPUT),
    ),
    Mistake(
        "SAGA117",
        "of an element in a fairness key",
        saga(
            '  - {id: a, uses: shop.tell, effect: none, for_each: "${{ input.c }}", fairness_key: "${{ ⟦item.no }}"}\n',
            "input:\n"
            "  required: [c]\n"
            "  properties: {c: {type: array, items: {required: [no], properties: {no: {x-sensitive: true}}}}}\n",
        ),
    ),
    Mistake("SAGA117", "around it", saga(BOOK, INPUT + 'labels: {all: "${{ ⟦input }}"}\n')),
    Mistake(
        "SAGA118", "retry of a wait", saga("  - {id: a, uses: wait, with: {for: 1s}, ⟦retry: {max_attempts: 3}}\n")
    ),
    Mistake(
        "SAGA118", "idempotent and guarded", saga("  - {id: a, uses: shop.book, pivot: true, ⟦idempotent: false}\n")
    ),
    *(
        Mistake("SAGA120", about, saga(BOOK, f"{INPUT}id: ⟦{id}\n"))
        for about, id in (
            ("an id like that of a nested saga", '"${{ input.name }}/${{ input.count }}"'),
            ("an id like that of a notification", "orders~notify"),
            ("an id like that of an undo", '"${{ input.name }}~undo"'),
            ("a control character in an id", r'"${{ input.name }}\x1b[2J"'),
            ("an id with a character that changes the direction of text", r'"a\u202e${{ input.name }}"'),
            ("an id that ends with white space", '"${{ input.name }} "'),
            ("an id that is too long", "a" * 513),
        )
    ),
    Mistake(
        "SAGA120", "the id of a trigger", saga(BOOK, 'triggers: {kafka: {topic: a, id: ⟦"a/${{ trigger.key }}"}}\n')
    ),
    *(
        Mistake(code, about, saga(BOOK, f"input: {schema}\n"))
        for code, about, schema in (
            ("SAGA121", "a default for the whole input", "{type: object, default: ⟦{}}"),
            ("SAGA121", "a default of an element", "{properties: {a: {items: {default: ⟦1}}}}"),
            ("SAGA121", "a default of other properties", "{additionalProperties: {default: ⟦1}}"),
            ("SAGA121", "a default under a condition", "{if: {properties: {a: {default: ⟦1}}}, then: {required: [a]}}"),
            (
                "SAGA121",
                "a default inside an alternative",
                "{properties: {a: {oneOf: [{default: ⟦1}, {type: string}]}}}",
            ),
            (
                "SAGA121",
                "a second default in a branch",
                "{properties: {a: {default: 1}}, if: {required: [b]}, then: {properties: {a: {default: ⟦2}}}}",
            ),
            ("SAGA122", "an unknown format", "{properties: {a: {type: string, format: ⟦date_time}}}"),
            ("SAGA123", "sensitive below an unknown keyword", "{dependencies: {a: {x-sensitive: ⟦true}}}"),
            ("SAGA118", "a keyword that JSON Schema does not have", "{properties: {a: {type: integer, min: ⟦1}}}"),
            ("SAGA123", "sensitive without its prefix", "{properties: {a: {sensitive: ⟦true}}}"),
            ("SAGA123", "sensitive as text", "{properties: {a: {x-sensitive: ⟦'yes'}}}"),
            ("SAGA124", "a required field that is forbidden", "{required: [⟦a], additionalProperties: false}"),
            ("SAGA124", "a required field that is false", "{required: [⟦a], properties: {a: false}}"),
            (
                "SAGA124",
                "a required field that another part forbids",
                "{required: [⟦a], allOf: [{properties: {b: {}}, additionalProperties: false}]}",
            ),
            ("SAGA124", "a default of another type", "{properties: {a: {type: integer, default: ⟦'7'}}}"),
            ("SAGA124", "a default outside of its limits", "{properties: {a: {minimum: 3, default: ⟦2}}}"),
            ("SAGA124", "an enum of another type", "{properties: {a: {type: integer, enum: ⟦['1', '2']}}}"),
            ("SAGA124", "a const that is not in the enum", "{properties: {a: {enum: [1, 2], const: ⟦3}}}"),
            ("SAGA124", "limits that leave nothing", "{properties: {a: {minimum: ⟦5, maximum: 3}}}"),
            ("SAGA124", "lengths that leave nothing", "{properties: {a: {items: {minLength: ⟦5, maxLength: 3}}}}"),
            ("SAGA124", "limits in a property called not", "{properties: {not: {minimum: ⟦5, maximum: 3}}}"),
            ("SAGA124", "limits in two parts", "{properties: {a: ⟦{allOf: [{minimum: 5}, {maximum: 3}]}}}"),
            ("SAGA124", "an open limit", "{properties: {a: {exclusiveMinimum: ⟦3, maximum: 3}}}"),
        )
    ),
    *(
        Mistake(code, about, saga(WAIT, f"triggers:\n  kafka: {trigger}\n"))
        for code, about, trigger in (
            ("SAGA130", "a signal nobody takes", '{topic: paid, id: "${{ trigger.key }}", signal: ⟦payd}'),
            ("SAGA131", "a signal for nobody", "{topic: paid, signal: ⟦paid}"),
            ("SAGA133", "a signal in bulk", '{topic: paid, id: "${{ trigger.key }}", signal: paid, ⟦bulk: {}}'),
            ("SAGA133", "a trigger that waits too long for others", "{topic: paid, bulk: {wait: ⟦6s}}"),
            (
                "SAGA138",
                "a signal that is offered again",
                '{topic: paid, id: "${{ trigger.key }}", signal: paid, ⟦redeliver: true}',
            ),
            ("SAGA138", "sagas in bulk that are offered again", "{topic: paid, bulk: {}, ⟦redeliver: true}"),
            ("SAGA105", "an event that is offered again at no time", "{topic: paid, redeliver: ⟦{}}"),
            ("SAGA106", "an event that is offered again too often", "{topic: paid, redeliver: ⟦5}"),
            ("SAGA106", "too many sagas for a workflow", "{topic: paid, bulk: {max: ⟦2001}}"),
            ("SAGA104", "an unknown field of a trigger", "{topic: paid, ⟦group: a}"),
            ("SAGA105", "a trigger without a topic", "⟦{input: {}}"),
            ("SAGA107", "a topic too long for its dead letters", f"{{topic: ⟦{'t' * 246}}}"),
            ("SAGA107", "a topic made by an expression", '{topic: ⟦"${{ vars.topic }}"}'),
            ("SAGA302", "a trigger over the input", '{topic: paid, id: "${{ ⟦input.order }}"}'),
            ("SAGA302", "what a trigger has not", '{topic: paid, input: {a: "${{ ⟦trigger.body }}"}}'),
            ("SAGA302", "a trigger that knows when its saga starts", '{topic: paid, id: "${{ ⟦saga.started_at }}"}'),
            ("SAGA301", "a filter that is not CEL", "{topic: paid, filter: 'trigger.key == ⟦)'}"),
        )
    ),
    Mistake(
        "SAGA130",
        "a signal and no wait",
        saga(BOOK, 'triggers: {kafka: {topic: a, id: "${{ trigger.key }}", signal: ⟦b}}\n'),
    ),
    Mistake(
        "SAGA132",
        "a trigger with an input that the saga refuses",
        saga(BOOK, "input: {properties: {n: {type: integer}}}\ntriggers: {kafka: [{topic: a, input: {n: ⟦many}}]}\n"),
    ),
    Mistake(
        "SAGA118",
        "a default for steps that cannot be local",
        "saga: s\ndefaults: {⟦execution: local}\nsteps:\n  - {id: a, uses: shop.book, pivot: true}\n",
    ),
    Mistake("SAGA118", "max_parallel alone", saga("  - {id: a, uses: shop.tell, effect: none, ⟦max_parallel: 3}\n")),
]
