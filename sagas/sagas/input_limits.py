"""Limits on definitions, inputs, signals and settings, which protect a process from what comes from outside.

The table in `docs/explanation/security.md` has all of them; a test compares it with this module.

The limits of one expression are in :mod:`sagas.expressions.limits`, those of Temporal in
:mod:`sagas.protocol.size_limits`.
"""

from __future__ import annotations

MAX_JSON_DEPTH = 100
"""Levels of lists and objects inside each other. Python could read some more, but not write them again everywhere."""

MAX_DECIMAL_DIGITS = 1_000
"""The digits that a decimal may have, written without exponent before or after its decimal point."""

MAX_INTEGER_DIGITS = 4_000
"""Digits of an integer. Python refuses to convert integers of more than 4,300 digits to strings."""

MAX_INTEGER_BITS = 13_287
"""The largest number of bits that always fits into :data:`MAX_INTEGER_DIGITS` digits."""

MAX_NUMBER_TEXTS = 4_000_000
"""Characters of all numbers of one request, array or call with events, as text without exponents. An exponent of three
digits stands for a thousand; numbers without one have fewer in an input of 2 MB."""

MAX_INPUT_VALUES = 250_000
"""Values (elements, fields) of one input."""

MAX_RESULT_VALUES = 100_000
"""Values of one result, reply, output, or data of a signal. A workflow task reads it, masks it twice, and writes it."""

MAX_CHECK_STEPS = 400_000
"""Evaluation steps of the checks of one input: parts of its schema that are applied to values, what they touch beyond,
and steps of expressions. They take up to a second of CPU; a megabyte of ordinary orders takes 300,000."""

MAX_TASK_BYTES = 128 * 1024
"""Bytes of JSON of an input that are validated in a workflow task, and read in that of a start by name."""

MAX_TASK_STEPS = 50_000
"""Evaluation steps of expressions after which the rest of the work is left to the next workflow task."""

MAX_FILE_BYTES = 5_000_000
"""Maximum size of a definition or of an input in a file; Temporal accepts messages of 4 MiB."""

MAX_DEFINITION_NODES = 100_000
"""Values of one file, after its aliases are replaced."""

MAX_PREFIXED_DIGITS = 3_000
"""Digits of a hexadecimal or octal integer in a definition: 3,000 of them are up to 3,613 decimal ones, and
:data:`MAX_INTEGER_DIGITS` holds for those."""

MAX_DEFINITION_CHARACTERS = 5_000_000
"""Characters of one file."""

MAX_STEPS = 2_000
"""Steps of one saga. What depends on what is known for each pair of them, so the checks take about a second then."""

MAX_SAGA_ID_BYTES = 512
"""Maximum bytes of an id in UTF-8. The keys of the guard tables have this many characters."""

MAX_LABEL_BYTES = 2048
"""Temporal's limit for one search attribute, which has all labels of a saga as JSON."""

MAX_WORKFLOW_ID_BYTES = 1000
"""Temporal's limit for every id, which is also that of nested sagas."""

MAX_DURATION = 100 * 365.25 * 86400
"""Seconds; a timer of more would overflow what Temporal and Python calculate with."""

MAX_RETRY_DELAY = 3600.0
"""Seconds until the next attempt for which a participant may ask."""

MAX_LOCK_KEYS = 100
"""Lock keys of one saga."""

MAX_LOCK_KEY_LENGTH = 200
"""Characters of a lock key."""

MAX_CANCEL_WORDS = 8 * 1024
"""Characters of the reason of a cancel and of the name of who sent it."""

MAX_UNPACKED_BYTES = 256 * 1024 * 1024
"""Bytes of a compressed state or definition when it is unpacked."""

MAX_UNSIGNED_STATE_BYTES = 16 * 1024 * 1024
"""Bytes of the state of a saga that is not signed with a key of the project, when it is unpacked."""

MAX_UNSIGNED_STATE_VALUES = 2 * MAX_INPUT_VALUES
"""Values of such a state: those of the largest input, and as many of what its steps have returned."""

MAX_SETTINGS_BYTES = 1 << 20
"""Maximum size of a settings file."""

MAX_SECRET_BYTES = 1 << 16
"""Maximum size of a file with a secret."""
