"""The task `freeze`: what a job will read, resolved once, so that a retry reads the same rows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from saga_spark.errors import JobFailed
from saga_spark.extract import Wanted, extract
from saga_spark.runner.run import Run
from saga_spark.sinks.files import size
from saga_spark.sinks.parquet_pointer import CURRENT, read_pointer
from saga_spark.storage import listing, local_or_uri, split_pattern, uri_of
from sagas.errors import UsageError


def freeze(run: Run, request: dict[str, Any]) -> dict[str, Any]:
    """``{"inputs": {name: {"kind", "values"}}, "folder": uri, "known": {name: {"files", "schema"}}}`` gives
    ``{"inputs": {name: {"format": "parquet", "files", "rows", "fingerprint", …}}}``, which ``frames`` opens.

    Raises JobFailed, UsageError, Infrastructure.
    """
    frozen: dict[str, dict[str, Any]] = {}
    databases: dict[str, list[Wanted]] = {}
    for name, one in request["inputs"].items():
        kind, values = one["kind"], one["values"]
        uri = f"{request['folder']}/{name}/part-00000.parquet"
        match kind:
            case "connection":
                databases.setdefault(values["connection"], []).append(Wanted(name, values, uri))
            case "parquet":
                frozen[name] = {**_parquet(run, name, values["parquet"]), **_view(values)}
            case "table":
                from saga_spark.snapshots import freeze_table  # pyiceberg: only who reads tables waits for it

                frozen[name] = {**freeze_table(run.settings, name, values, uri), **_view(values)}
            case "topic":
                from saga_spark.topic_input import freeze_topic

                found = freeze_topic(run.settings, name, values, uri, run.progress)
                frozen[name] = {**found, **_view(values)}
            case "step":
                frozen[name] = {**_step(values, request["known"][name]), **_view(values)}
            case _:
                raise UsageError(f"the input {name} is of the unknown kind {kind}")
        run.check()
    for connection, wanted in databases.items():
        found = extract(run.settings.connection(connection), wanted, run.progress, run.on_cancel)
        for one in wanted:
            result = found[one.name]
            fingerprint = {"kind": "connection", "connection": connection, "rows": result.rows}
            fingerprint |= {"snapshot": result.snapshot, "taken_at": result.taken_at}
            frozen[one.name] = {"files": [one.uri], "rows": result.rows, "fingerprint": fingerprint}
    return {"inputs": {name: {"format": "parquet", **frozen[name]} for name in request["inputs"]}}


def _parquet(run: Run, name: str, where: str) -> dict[str, Any]:
    place = local_or_uri(where, run.settings.root)
    if size(f"{place.rstrip('/')}/{CURRENT}") is not None:
        paths = read_pointer(place)
        if not paths:
            raise JobFailed(f"the input {name}: the Parquet output at {where} holds no rows yet")
        return {"files": [uri_of("file:", path) for path in paths], "rows": None, "fingerprint": _print(paths)}
    found = listing(place)
    if not found:
        raise JobFailed(f"the input {name}: there are no Parquet files at {where}")
    fingerprint = _print([[one.uri, one.bytes, one.modified] for one in found])
    frozen: dict[str, Any] = {"files": [one.uri for one in found], "rows": None, "fingerprint": fingerprint}
    base = uri_of(place, split_pattern(place)[0])
    if any("=" in one.uri[len(base) :] for one in found):
        frozen["base"] = base  # folders like day=2026-01-01 hold a column
    return frozen


def _step(values: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    fingerprint = {**_print(known["files"]), "kind": "step", "step": values["step"]}
    return {"files": list(known["files"]), "rows": None, "schema": known.get("schema"), "fingerprint": fingerprint}


def _print(files: Any) -> dict[str, Any]:
    """A fingerprint of a list of files that never change, or of their sizes and times."""
    text = json.dumps(files)
    return {"kind": "parquet", "files": len(files), "sha256": hashlib.sha256(text.encode()).hexdigest()}


def _view(values: Mapping[str, Any]) -> dict[str, Any]:
    """The filter and the columns are applied when the input is opened."""
    return {key: values[key] for key in ("where", "columns") if values.get(key) is not None}
