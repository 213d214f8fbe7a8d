"""One wrong definition per row: what is wrong, where, and its diagnostic code.

In each text `⟦` precedes the character a diagnostic points at; it is removed before parsing.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from sagas.actions import Action, Actions
from sagas.definition.draft import KafkaResources, SparkResources

MARK = "⟦"


def _reserve(step: object, sku: str, quantity: int = 1) -> None: ...
def _release(step: object, sku: str, quantity: int = 1) -> None: ...
def _book(step: object) -> None: ...
def _charge(step: object, amount: str) -> None: ...
def _move(step: object, from_: str, to: str) -> None: ...
def _note(step: object, id: str, **marks: int) -> None: ...


@dataclass(frozen=True)
class Price:
    amount: Decimal
    count: int


def _price(step: object) -> Price:
    return Price(Decimal(1), 1)


ACTIONS = Actions(
    [
        Action("shop.reserve", _reserve, connection="shop"),
        Action("shop.release", _release, connection="shop"),
        Action("shop.book", _book, connection="shop"),
        Action("shop.tell", _book, connection="shop", rejects=False),
        Action("shop.price", _price, connection="shop"),
        Action("shop.move", _move, connection="shop"),
        Action("shop.note", _note, connection="shop"),
        Action("bank.charge", _charge),
        Action("bank.refund", _charge),
        Action("bank.blind", _book, idempotent=False),
    ]
)

KAFKA = KafkaResources("shop")
SPARK = SparkResources("shop", {"lake": {"type": "sql"}, "glue": {"type": "glue"}})
CONNECTIONS = {"shop": {"kind": "sql"}, "crm": {"kind": "http"}, "old": {"kind": "http", "idempotency": "none"}}


@dataclass(frozen=True)
class Mistake:
    """``about`` names the test; ``text`` the definition with its mark; ``also``: other codes that may appear."""

    code: str
    about: str
    text: str
    also: tuple[str, ...] = ()
    spark: SparkResources = SPARK
    kafka: KafkaResources = KAFKA

    @property
    def clean(self) -> str:
        return self.text.replace(MARK, "")

    @property
    def place(self) -> tuple[int, int]:
        before = self.text[: self.text.index(MARK)]
        return before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1


def saga(steps: str, top: str = "") -> str:
    return f"saga: shop\n{top}steps:\n{steps}"


RESERVE = "  - {id: reserve, uses: shop.reserve, with: {sku: a}, compensate: shop.release}\n"


def spark(arguments: str, *, more: str = "", top: str = "") -> str:
    """A saga of one Spark step."""
    return saga(f"  - {{id: a, uses: spark, with: {{sql: select 1 as a, {arguments}}}{more}}}\n", top)


WAIT = "  - {id: pay, uses: wait, with: {signal: paid}}\n"
BOOK = "  - {id: book, uses: shop.book, pivot: true}\n"
NOTIFY = "notify:\n  - {{when: parked, {one}}}\n"
TOLD = "uses: http, with: {{url: 'http://crm.example', json: '${{{{ {it} }}}}'}}"
TELL = "  - {id: tell, uses: shop.tell}\n"
EACH = "  - {{id: a, uses: shop.tell, for_each: ⟦'{}', effect: none}}\n"
INPUT = """input:
  type: object
  properties:
    name: {type: string}
    count: {type: integer}
    price: {type: string}
    card: {type: string, x-sensitive: true}
    lines: {type: array, items: {type: object, properties: {sku: {type: string}}}}
"""

MISTAKES = [
    # SAGA1xx: structure
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
    Mistake("SAGA104", "unknown step field", saga("  - {id: book, uses: shop.book, ⟦pivott: true}\n"), ("SAGA205",)),
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
    Mistake("SAGA107", "a label name", saga(BOOK, "labels: {⟦a b: c}\n")),
    Mistake("SAGA108", "an id twice", saga(RESERVE + RESERVE.replace("id: reserve", "id: ⟦reserve"))),
    Mistake("SAGA109", "no unit", saga(BOOK, "deadline: ⟦90\n")),
    Mistake("SAGA109", "an unknown unit", saga(BOOK, "warn_after: ⟦3w\n")),
    Mistake("SAGA109", "nothing", saga("  - {id: a, uses: shop.book, pivot: true, timeout: ⟦0s}\n")),
    Mistake("SAGA112", "an unknown type", saga(BOOK, "input: {type: ⟦strin}\n")),
    Mistake("SAGA112", "a list", saga(BOOK, "input: ⟦[a]\n")),
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
    Mistake("SAGA117", "around it", saga(BOOK, INPUT + 'labels: {all: "${{ ⟦input }}"}\n')),
    Mistake(
        "SAGA118", "retry of a wait", saga("  - {id: a, uses: wait, with: {for: 1s}, ⟦retry: {max_attempts: 3}}\n")
    ),
    Mistake(
        "SAGA118", "idempotent and guarded", saga("  - {id: a, uses: shop.book, pivot: true, ⟦idempotent: false}\n")
    ),
    *(
        Mistake(code, about, saga(WAIT, f"triggers:\n  kafka: {trigger}\n"))
        for code, about, trigger in (
            ("SAGA130", "a signal nobody takes", '{topic: paid, id: "${{ trigger.key }}", signal: ⟦payd}'),
            ("SAGA131", "a signal for nobody", "{topic: paid, signal: ⟦paid}"),
            ("SAGA104", "an unknown field of a trigger", "{topic: paid, ⟦group: a}"),
            ("SAGA105", "a trigger without a topic", "⟦{input: {}}"),
            ("SAGA107", "a topic made by an expression", '{topic: ⟦"${{ vars.topic }}"}'),
            ("SAGA302", "a trigger over the input", '{topic: paid, id: "${{ ⟦input.order }}"}'),
            ("SAGA302", "what a trigger has not", '{topic: paid, input: {a: "${{ ⟦trigger.body }}"}}'),
            ("SAGA302", "a trigger that knows when its saga starts", '{topic: paid, id: "${{ ⟦saga.started_at }}"}'),
            ("SAGA301", "a filter that is no CEL", "{topic: paid, filter: 'trigger.key == ⟦)'}"),
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
    Mistake("SAGA118", "max_parallel alone", saga("  - {id: a, uses: shop.tell, effect: none, ⟦max_parallel: 3}\n")),
    # SAGA2xx: graph and kinds
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
    Mistake("SAGA230", "a second", saga("  - {id: a, uses: shop.book, pivot: true, timeout: ⟦1s}\n")),
    Mistake("SAGA231", "once", saga("  - {id: a, uses: shop.book, pivot: true, retry: {max_attempts: ⟦1}}\n")),
    Mistake(
        "SAGA232", "too little time", saga("  - {id: a, uses: shop.book, pivot: true, retry: {give_up_after: ⟦40s}}\n")
    ),
    Mistake("SAGA233", "heartbeat", saga("  - {id: a, uses: shop.book, pivot: true, timeout: 10s, heartbeat: ⟦9s}\n")),
    # SAGA3xx: expressions
    Mistake("SAGA301", "syntax", saga(BOOK, 'output: "${{ input.⟦.a }}"\n')),
    Mistake("SAGA301", "not closed", saga(BOOK, 'output: "⟦${{ input.a"\n')),
    Mistake("SAGA302", "an unknown name", saga(BOOK, 'output: "${{ ⟦inputs.name }}"\n')),
    Mistake("SAGA302", "an unknown function", saga(BOOK, 'output: "${{ ⟦summ([1]) }}"\n')),
    Mistake("SAGA302", "an undeclared input", saga(BOOK, INPUT + 'output: "${{ ⟦input.nam }}"\n')),
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
        "SAGA304",
        "a decimal of a result",
        saga("  - {id: a, uses: shop.price, pivot: true}\n", 'output: "${{ ⟦steps.a.result.amount + 1 }}"\n'),
    ),
    Mistake(
        "SAGA304",
        "decimals of results",
        saga(
            "  - {id: a, uses: shop.price, effect: none, for_each: [1]}\n",
            'output: "${{ ⟦sum(steps.a.results.map(r, r.amount)) }}"\n',
        ),
    ),
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
        "SAGA307",
        "a row under its own key",
        saga(
            "  - id: a\n    uses: sql\n    with:\n      connection: shop\n"
            "      run: {sql: insert into hold values (:id), params: {id: '${{ step.key }}'}}\n"
            "    compensate:\n      uses: sql\n      with:\n        connection: shop\n"
            "        run: {sql: delete from hold where id = :id, params: {id: '${{ ⟦step.key }}'}}\n"
        ),
    ),
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
            "     compensate: {uses: sql, with: {connection: shop, run: {sql: ⟦'/* x */ commit'}}}}\n"
        ),
    ),
    Mistake(
        "SAGA406",
        "several statements in one text",
        saga("  - {id: a, uses: sql, with: {connection: shop, run: [{sql: ⟦select 1; select 2}]}, pivot: true}\n"),
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
    *(Mistake("SAGA900", field, saga(BOOK, f"⟦{field}: {{}}\n")) for field in ("locks",)),
    Mistake("SAGA900", "schedule", saga(BOOK, "triggers: {⟦schedule: {cron: '0 3 * * *'}}\n")),
    Mistake("SAGA900", "savepoint", saga("  - {id: a, uses: shop.book, pivot: true, ⟦savepoint: {attempts: 3}}\n")),
    Mistake("SAGA900", "check", saga("  - {id: a, uses: shop.book, pivot: true, ⟦check: {uses: a}}\n")),
    Mistake("SAGA900", "compensate auto", saga("  - {id: a, uses: shop.book, compensate: ⟦auto}\n")),
    Mistake(
        "SAGA900",
        "two_phase",
        saga("  - {id: a, uses: sql, with: {connection: shop, run: select 1, ⟦two_phase: true}, pivot: true}\n"),
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
    Mistake(
        "SAGA305",
        "the result of a request that nobody may know",
        saga(
            "  - id: a\n    uses: kafka.request\n    with: {topic: t, value: 1}\n    compensate:\n"
            '      uses: kafka.request\n      with: {topic: t, value: "${{ ⟦steps.a.result.id }}"}\n'
        ),
    ),
]
