"""Values in `path` and `url` of `http`: percent-encoded, so that data cannot name another resource or host.

Text of the definition is taken as it is, and so is what comes from `vars`: the project's author wrote both.
"""

from __future__ import annotations

import re

from sagas.expressions import ExpressionError, compile_expression
from sagas.expressions.nodes import FunctionCall
from sagas.expressions.template_syntax import OPENING, TemplatePart, split_template

SEGMENT, PATH = "url_segment", "url_path"
_ORIGIN = re.compile(r"https?://[^/?#]+[/?#]", re.IGNORECASE)


def encoded_path(path: str) -> str:
    """A path template whose expressions are wrapped, so that each value is percent-encoded as one segment.

    The value of a template that is a single expression is a whole path, so its `/` stays."""
    parts = _parts(path)
    function = PATH if len(parts) == 1 else SEGMENT
    return "".join(_encoded(part, function) for part in parts)


def encoded_url(url: str) -> str:
    """A URL template whose expressions behind the host are wrapped, so that each value is percent-encoded."""
    result = before = ""
    for part in _parts(url):
        result += _encoded(part, SEGMENT) if _ORIGIN.match(before) else _written(part)
        before += _stand_in(part, before)
    return result


def has_computed_host(url: str) -> bool:
    """True if data decides which host the template names."""
    before = ""
    for part in _parts(url):
        if _is_data(part) and not _ORIGIN.match(before):
            return True
        before += _stand_in(part, before)
    return False


def _parts(template: str) -> list[TemplatePart]:
    """The parts; one literal if they do not parse, which the checks of expressions report."""
    try:
        parts = split_template(template)
        for part in parts:
            if part.expression:
                compile_expression(part.text)
    except ExpressionError:
        return [TemplatePart(template, 0, False)]
    return parts


def _is_data(part: TemplatePart) -> bool:
    return part.expression and any(
        reference.path[:1] != ("vars",) for reference in compile_expression(part.text).references
    )


def _encoded(part: TemplatePart, function: str) -> str:
    if not _is_data(part):
        return _written(part)
    node = compile_expression(part.text).node
    if isinstance(node, FunctionCall) and node.name in (SEGMENT, PATH):
        return _written(part)
    end = "\n" if "//" in part.text else ""  # the expression may end with a comment
    return _written(TemplatePart(f" {function}({part.text.strip()}{end}) ", part.offset, True))


def _written(part: TemplatePart) -> str:
    return f"{OPENING}{part.text}}}}}" if part.expression else part.text.replace(OPENING, f"${OPENING}")


def _stand_in(part: TemplatePart, before: str) -> str:
    """Text in place of the part to recognise where the host ends; an expression at the start is an origin."""
    return part.text if not part.expression else "x" if before else "https://x"
