"""Modules that are needed without an optional package can be imported without it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from sagas.text.exact_json import decode_json

ROOT = Path(__file__).parents[2]
PROGRAM = """
import importlib, importlib.abc, json, pkgutil, sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1:]:
            raise ModuleNotFoundError(f"No module named {name}", name=name)

sys.meta_path.insert(0, Missing())
failed = {}
for room in ("sagas", "saga_activities", "saga_spark", "saga_workers", "saga_cli"):
    package = importlib.import_module(room)
    for module in pkgutil.walk_packages(package.__path__, room + ".", onerror=lambda name: None):
        if not module.name.endswith("__main__"):
            try:
                importlib.import_module(module.name)
            except ModuleNotFoundError as error:
                failed[module.name] = error.name.partition(".")[0]
print(json.dumps(failed))
"""
OPTIONAL = {
    "spark": ("pyspark", "pandas", "numpy", "pyarrow", "pyiceberg", "grpc"),
    "reconcile": ("duckdb", "pyarrow"),
    "kafka": ("confluent_kafka",),
    "codec": ("cryptography",),
    "mysql": ("asyncmy",),
    "otel": ("opentelemetry",),
}
NEEDED_BY = {
    "saga_spark.": ("spark", "reconcile"),
    "saga_workers.worker.stage_upkeep": ("spark",),
    "saga_workers.reconcile.": ("reconcile",),
    "saga_workers.worker.tracing": ("otel",),
}
"""The modules that are imported only where an extra is installed, or whose import says which one is missing."""


def test_a_module_imports_an_optional_package_only_where_its_extra_is_needed() -> None:
    packages = sorted({package for names in OPTIONAL.values() for package in names})
    command = [sys.executable, "-c", PROGRAM, *packages]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    unexpected = {}
    for module, package in decode_json(done.stdout).items():
        extras = {extra for prefix, each in NEEDED_BY.items() if module.startswith(prefix) for extra in each}
        if not any(package in OPTIONAL[extra] for extra in extras):
            unexpected[module] = package
    assert unexpected == {}
