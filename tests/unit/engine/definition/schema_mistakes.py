"""Wrong definitions: input schemas of which no value can fit a part."""

from __future__ import annotations

from tests.unit.engine.definition.mistake import BOOK, Mistake, saga

_PARTS = [
    ("types of two parts", "⟦{allOf: [{type: string}, {type: integer}]}"),
    ("a type and that of a part", "{type: ⟦string, allOf: [{type: [integer, array]}]}"),
    ("an enum of another part's type", "{allOf: [{type: string}], enum: ⟦[1, 2]}"),
    ("enums of two parts", "⟦{allOf: [{enum: [a, b]}, {enum: [c, d]}]}"),
    ("a const and the enum of a part", "{const: ⟦a, allOf: [{enum: [b, c]}]}"),
    ("consts of two parts", "⟦{allOf: [{const: 1}, {const: 2}]}"),
    ("an enum outside of its limits", "{type: integer, enum: ⟦[1, 2], minimum: 3}"),
    ("an enum outside of the limits of a part", "{enum: ⟦[1, 2], allOf: [{minimum: 3}]}"),
    ("an enum that is too long", "{enum: ⟦[abc, abcd], maxLength: 2}"),
    ("an enum that the pattern excludes", "{enum: ⟦[abc, abd], pattern: '^x'}"),
    ("an enum that the format excludes", "{type: string, enum: ⟦[today], format: date}"),
    ("an enum that not excludes", "{enum: ⟦[a, b], not: {type: string}}"),
    ("a const outside of its limits", "{const: ⟦7, maximum: 3}"),
    ("limits of two parts", "{minimum: ⟦5, allOf: [{maximum: 3}]}"),
    ("no whole number", "{type: integer, minimum: ⟦1.2, maximum: 1.8}"),
    ("no multiple", "{multipleOf: 5, minimum: ⟦1, maximum: 4}"),
    ("no common multiple", "{multipleOf: 2, minimum: ⟦1, maximum: 5, allOf: [{multipleOf: 3}]}"),
    ("too many required fields", "{required: ⟦[b, c], maxProperties: 1}"),
    ("too many in two parts", "{maxProperties: ⟦1, allOf: [{required: [b]}, {required: [c]}]}"),
    ("required through another", "{required: ⟦[b], dependentRequired: {b: [c]}, maxProperties: 1}"),
    ("too few declared", "{minProperties: ⟦2, properties: {b: {}}, additionalProperties: false}"),
    ("too few elements", "{minItems: ⟦3, prefixItems: [{}, {}], items: false}"),
    ("an element that is false", "{minItems: ⟦2, prefixItems: [{}, false]}"),
    ("too few elements to differ", "{minItems: ⟦3, uniqueItems: true, items: {enum: [1, 2]}}"),
    ("contains more than there are", "{contains: ⟦{const: 1}, minContains: 3, maxItems: 2}"),
    ("contains too many", "{contains: {}, minContains: ⟦3, maxContains: 2}"),
    ("contains nothing", "{contains: ⟦false}"),
    ("asks for what is false", "{properties: {c: false}, dependentRequired: {b: [⟦c]}}"),
    ("asks for what no part declares", "⟦{allOf: [{required: [b]}, {additionalProperties: false}]}"),
    ("a required field with not", "{required: [⟦b], properties: {b: {not: {}}}}"),
    ("a required field by pattern", "{required: [⟦b], patternProperties: {'^b': false}}"),
    ("a required name that is too long", "{required: [⟦bcd], propertyNames: {maxLength: 2}}"),
    (
        "a field of two parts",
        "⟦{properties: {b: {type: string}}, allOf: [{properties: {b: {type: integer}}}]}",
    ),
    ("elements of two parts", "⟦{allOf: [{items: {minimum: 5}}, {items: {maximum: 3}}]}"),
    ("no alternative", "{type: string, anyOf: ⟦[{type: integer}, {enum: [1, 2]}]}"),
    ("a default outside of an open limit", "{exclusiveMinimum: 3, default: ⟦3}"),
]

SCHEMA_MISTAKES = [
    *(Mistake("SAGA124", about, saga(BOOK, f"input: {{properties: {{a: {schema}}}}}\n")) for about, schema in _PARTS),
    *(
        Mistake("SAGA124", about, saga(BOOK, f"input: {schema}\n"))
        for about, schema in (
            (
                "limits behind a reference, once",
                "{$defs: {n: {minimum: ⟦5, maximum: 3}}, properties: {a: {$ref: '#/$defs/n'}, b: {$ref: '#/$defs/n'}}}",
            ),
            (
                "a limit and one behind a reference",
                "{$defs: {n: {minimum: 5}}, properties: {a: {$ref: '#/$defs/n', maximum: ⟦3}}}",
            ),
        )
    ),
]
