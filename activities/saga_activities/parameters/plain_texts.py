"""Text that is certainly no number, no date or time and no array, whatever database reads it. Pure.

Most parameters are names and ids. One expression that recognises these costs a tenth of those that look for all forms
of numbers and times.
"""

from __future__ import annotations

import re

from saga_activities.parameters.iso_times import CLOCK_WORDS, DATE_WORDS

_HEX = "[0-9a-f]"
_PLAIN = re.compile(
    # A name whose first word is none of a date, without what looks like a time (T10) or a number of PostgreSQL (1_0).
    rf"(?!(?:{DATE_WORDS}|{CLOCK_WORDS})(?![a-z]))(?!.*(?:t[0-9]{{2}}|[0-9]_[0-9]))[a-z][a-z0-9_-]*"
    # A UUID whose first letter begins no word of a date.
    rf"|(?=[0-9-]*+(?:a(?!d)|b(?!c)|[ce]|f(?!eb))){_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}",
    re.ASCII | re.IGNORECASE,
)


def is_plain(text: str) -> bool:
    """Return whether text is a name or an id that nothing takes for another value; False also if it only may be one."""
    return _PLAIN.fullmatch(text) is not None
