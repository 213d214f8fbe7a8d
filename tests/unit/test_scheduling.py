"""The distribution of the tests knows each file that takes a Spark session: otherwise several processes start one."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.helpers.scheduling import WITH_SPARK

ROOT = Path(__file__).parents[2]


def takes_a_session(file: Path) -> bool:
    """True if a test or a fixture of the file has the parameter ``spark`` of the shared session."""
    source = file.read_text(encoding="utf-8")
    if "SparkSession" not in source:
        return False  # to parse it takes much longer
    functions = (
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    parameters = (parameter for function in functions for parameter in function.args.args)
    return any(
        parameter.arg == "spark"
        and parameter.annotation is not None
        and ast.unparse(parameter.annotation) == "SparkSession"
        for parameter in parameters
    )


def test_one_process_has_the_spark_session() -> None:
    files = [file for file in sorted((ROOT / "tests").rglob("test_*.py")) if takes_a_session(file)]
    names = [str(file.relative_to(ROOT)) for file in files]
    assert len(names) > 10
    assert [name for name in names if not name.startswith(WITH_SPARK)] == []
