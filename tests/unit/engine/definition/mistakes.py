"""One wrong definition per row: what is wrong, where, and its diagnostic code."""

from __future__ import annotations

from tests.unit.engine.definition.action_mistakes import ACTION_MISTAKES
from tests.unit.engine.definition.default_mistakes import DEFAULT_MISTAKES
from tests.unit.engine.definition.expression_mistakes import EXPRESSION_MISTAKES
from tests.unit.engine.definition.feature_mistakes import FEATURE_MISTAKES
from tests.unit.engine.definition.graph_mistakes import GRAPH_MISTAKES
from tests.unit.engine.definition.isolation_mistakes import ISOLATION_MISTAKES, SQL_ISOLATION_MISTAKES
from tests.unit.engine.definition.lock_mistakes import LOCK_MISTAKES
from tests.unit.engine.definition.schema_mistakes import SCHEMA_MISTAKES
from tests.unit.engine.definition.structure_mistakes import STRUCTURE_MISTAKES

MISTAKES = [
    *STRUCTURE_MISTAKES,
    *SCHEMA_MISTAKES,
    *GRAPH_MISTAKES,
    *EXPRESSION_MISTAKES,
    *ACTION_MISTAKES,
    *FEATURE_MISTAKES,
    *ISOLATION_MISTAKES,
    *SQL_ISOLATION_MISTAKES,
    *LOCK_MISTAKES,
    *DEFAULT_MISTAKES,
]
