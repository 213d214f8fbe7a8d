"""Wrong definitions with `locks`."""

from __future__ import annotations

from tests.unit.engine.definition.mistake import BOOK, INPUT, RESERVE, TELL, Mistake, saga


def locks(fields: str, steps: str = RESERVE + BOOK, top: str = "") -> str:
    return saga(steps, f"{top}locks: {{{fields}}}\n")


LOCK_MISTAKES = [
    Mistake("SAGA250", "no database", saga(BOOK, "⟦locks: {keys: [a]}\n"), locks=None),
    Mistake("SAGA105", "no keys", saga(BOOK, "locks: ⟦{wait: 1s}\n")),
    Mistake("SAGA106", "keys that are not a list", locks("keys: ⟦order-7")),
    Mistake("SAGA109", "a wait that is not a duration", locks("keys: [a], wait: ⟦never")),
    Mistake("SAGA109", "no time to wait", locks("keys: [a], wait: ⟦0s")),
    Mistake("SAGA106", "released at an unknown time", locks("keys: [a], until: ⟦end")),
    Mistake("SAGA104", "an unknown field", locks("keys: [a], ⟦timeout: 1s")),
    Mistake("SAGA201", "from no step", locks("keys: [a], from: ⟦revers")),
    Mistake("SAGA251", "from a step behind the pivot", locks("keys: [a], from: ⟦tell", BOOK + TELL)),
    Mistake("SAGA251", "from, and only forward", locks("keys: [a], from: ⟦tell", TELL, "recovery: forward\n")),
    Mistake("SAGA251", "until the start", locks("keys: [a], until: ⟦commit", TELL, "recovery: forward\n")),
    Mistake(
        "SAGA252",
        "a parallel effect",
        locks(
            "keys: [a], from: ⟦b",
            RESERVE + "  - {id: b, uses: shop.reserve, with: {sku: b}, compensate: shop.release, needs: []}\n" + BOOK,
        ),
    ),
    Mistake("SAGA253", "no key at all", locks("keys: ⟦[]")),
    Mistake("SAGA253", "an empty key", locks("keys: [⟦'']")),
    Mistake("SAGA253", "a long key", locks(f"keys: [⟦{'x' * 201}]")),
    Mistake("SAGA253", "white space around a key", locks("keys: [⟦'a ']")),
    Mistake("SAGA253", "a control character in a key", locks('keys: [⟦"a\\e[31m"]')),
    Mistake("SAGA253", "null", locks("keys: [⟦null]")),
    Mistake("SAGA253", "too many", locks(f"keys: ⟦[{', '.join(f'k{n}' for n in range(101))}]")),
    Mistake("SAGA302", "a key over a result, taken before it", locks("keys: ['${{ ⟦steps.reserve.result.id }}']")),
    Mistake(
        "SAGA303", "a key over the step that follows", locks("keys: ['${{ ⟦steps.book.result.x }}'], from: reserve")
    ),
    Mistake("SAGA117", "a sensitive key", locks("keys: ['${{ ⟦input.card }}']", top=INPUT)),
]
