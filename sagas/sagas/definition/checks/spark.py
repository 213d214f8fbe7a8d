"""Checks Spark steps: one source per input, one target per output, one kind per check, and supported sinks."""

from __future__ import annotations

import re

from sagas.builtins.registry import is_spark_job
from sagas.builtins.spark import CHECK_KINDS, FIXED_CONF, MULTI_TABLE_COMMIT, SESSION_ZONE, SPARK, commits_together
from sagas.definition.checks.arguments import check_connection
from sagas.definition.diagnostics import Report, suggestion_help
from sagas.definition.parser.draft import SagaDraft, StepDraft
from sagas.definition.parser.language import STEP_ID
from sagas.definition.parser.yaml_nodes import YamlNode, children_of
from sagas.sql_text.dialects import NAMES

_ENGINE_FIELDS = ("compensate", "confirm", "probe")
_MODES = {
    "topic": ("append",),
    "parquet": ("append", "overwrite"),
    "connection": ("append", "overwrite", "overwrite_where", "merge"),
}
_REQUIRED_FIELDS = {"overwrite_where": "where", "merge": "key"}
_MODE_HELP = {
    "where": "name the rows to be replaced, for example where: {day: '2026-01-01'}",
    "key": "name the columns that identify a row, for example key: [id], or use `mode: append`",
}
_SOURCES = "{table: lake.sales.orders}, {parquet: s3://bucket/orders} or {step: extract}"
_PLACES = "{table: lake.sales.facts}, {parquet: s3://bucket/facts} or {connection: shop, table: facts}"
MAX_NAME = 64


def check_spark(draft: SagaDraft, report: Report) -> None:
    """Check all `spark` and `reconcile` steps of the saga."""
    catalogs: set[str] = set()
    for step in draft.steps:
        if not is_spark_job(step.step.do.uses):
            continue
        given = children_of(step.operations[0].arguments)
        if step.step.do.uses == SPARK:
            _check_step(draft, step, given, catalogs, report)
        else:
            for side in ("left", "right"):
                if side in given:
                    _check_input(draft, step, side, given[side], report)
    if len(catalogs) > 1:
        position = draft.root.position_of("publish")
        names = " and ".join(f"`{name}`" for name in sorted(catalogs))
        report.add("SAGA409", position, f"`publish: together` is one transaction, and the outputs are in {names}")


def _check_step(
    draft: SagaDraft, step: StepDraft, given: dict[str, YamlNode], catalogs: set[str], report: Report
) -> None:
    if draft.project.spark is not None and draft.project.spark.ledger is None:
        report.add("SAGA410", step.parsed.node_of("uses"), f"`{step.id}` has no ledger for its guard and fence rows")
    for field in _ENGINE_FIELDS:
        if field in step.parsed:
            report.add(
                "SAGA407",
                step.parsed.position_of(field),
                f"`spark` has its own `{field}`, so `{step.id}` cannot have one",
            )
    if step.parsed.get("pivot"):
        message = f"`{step.id}` is staged first and published after the commit point, so it cannot be the pivot"
        report.add("SAGA204", step.parsed.position_of("pivot"), message)
    if (
        draft.project.spark is not None
        and draft.project.spark.remote
        and "main" in (job := children_of(given.get("job")))
    ):
        report.add("SAGA417", job["main"], f"`{step.id}` submits a program, which Spark Connect cannot do")
    _check_conf(draft, step, children_of(given.get("conf")), report)
    position = step.operations[0].arguments or step.parsed.node
    _exactly_one(given, ("job", "sql"), position, f"`{step.id}` needs", report)
    _exactly_one(given, ("output", "outputs"), position, f"`{step.id}` needs", report)
    _check_sql_job(step, given, report)
    for field in ("inputs", "outputs"):
        _check_names(given.get(field), report)
    for name, source in children_of(given.get("inputs")).items():
        _check_input(draft, step, name, source, report)
    outputs = children_of(given.get("outputs")) or ({"output": given["output"]} if "output" in given else {})
    for name, source in outputs.items():
        _check_output(draft, step, name, source, catalogs, report)
    audit = given.get("audit")
    for check in audit.value if audit is not None and isinstance(audit.value, list) else ():
        _check_check(draft, step, check, tuple(outputs), report)


def _check_sql_job(step: StepDraft, given: dict[str, YamlNode], report: Report) -> None:
    """A query has one result, which is the rows of the only output."""
    outputs = given.get("outputs")
    is_sql = "sql" in given or "sql" in children_of(given.get("job"))
    if outputs is not None and is_sql and (number := len(children_of(outputs))) > 1:
        message = f"the job of `{step.id}` is SQL, which has the rows of one output, and `outputs` has {number}"
        help = "write the job as a Python function (`job: module:function`), or a step for each output"
        report.add("SAGA408", outputs, message, help)


def _check_conf(draft: SagaDraft, step: StepDraft, conf: dict[str, YamlNode], report: Report) -> None:
    for name, value in FIXED_CONF.items():
        if name in conf and str(conf[name].value) != value:
            message = f"`{name}` must stay {value}, because staged files rely on it"
            report.add("SAGA408", conf[name], message, f"remove `{name}` from `conf`")
    remote = draft.project.spark is not None and draft.project.spark.remote
    if remote and SESSION_ZONE in conf and str(conf[SESSION_ZONE].value) != "UTC":
        message = f"`{step.id}` sets `{SESSION_ZONE}`, which over Spark Connect would also hold for its checks"
        report.add("SAGA417", conf[SESSION_ZONE], message, "convert times in the job, with from_utc_timestamp")


def _check_names(node: YamlNode | None, report: Report) -> None:
    """Check names that become folders of the stage and values of a ledger column."""
    for name in children_of(node):
        if node is not None and not re.fullmatch(STEP_ID, name):
            report.add(
                "SAGA107", node.key_position(name), f"`{name}` is not a name of lower-case letters, digits and `_`"
            )
        elif node is not None and len(name) > MAX_NAME:
            report.add("SAGA107", node.key_position(name), f"`{name}` is longer than {MAX_NAME} characters")


def _check_input(draft: SagaDraft, step: StepDraft, name: str, node: YamlNode, report: Report) -> None:
    given = children_of(node)
    if not given:
        return
    sources = [word for word in ("connection", "parquet", "step", "topic") if word in given]
    if "params" in given and "connection" not in given:
        message = f"`params` of the input `{name}` need a `connection`, because they are those of its SQL"
        report.add("SAGA408", given["params"], message, "give the SQL of a job its own `params`, next to `inputs`")
    if len(sources) > 1 or not (sources or "table" in given):
        message = f"the input `{name}` needs one of `connection`, `parquet`, `step`, `table` and `topic`"
        report.add("SAGA408", node, message, f"write one source, for example {_SOURCES}")
    elif sources == ["connection"]:
        _exactly_one(given, ("table", "query"), node, f"the input `{name}` names a connection and needs", report)
        _check_named_connection(draft, given["connection"], report)
    elif sources == ["step"]:
        _check_ancestor(draft, step, given["step"], report)
    elif not sources:
        _catalog_of(draft, given["table"], report)


def _check_ancestor(draft: SagaDraft, step: StepDraft, node: YamlNode, report: Report) -> None:
    id = node.value
    if not isinstance(id, str) or "${{" in id:
        return
    other = draft.steps_by_id.get(id)
    if other is None:
        report.add("SAGA302", node, f"there is no step `{id}`", suggestion_help(id, draft.steps_by_id) or None)
    elif other.step.do.uses != SPARK:
        jobs = [f"`{other.id}`" for other in draft.steps if other.step.do.uses == SPARK and other.id != step.id]
        listed = f"Spark steps of this saga: {', '.join(jobs)}; " if jobs else ""
        help = f"{listed}read the rows of any other step where they are stored, for example {_SOURCES}"
        report.add("SAGA408", node, f"`{id}` is not a Spark step, so it has no staged output", help)
    elif not draft.graph.is_ancestor(id, step.id):
        report.add("SAGA303", node, f"`{id}` is not an ancestor of `{step.id}`")


def _check_output(
    draft: SagaDraft, step: StepDraft, name: str, node: YamlNode, catalogs: set[str], report: Report
) -> None:
    given = children_of(node)
    if not given:
        return
    kind = next((word for word in ("topic", "parquet", "connection") if word in given), "iceberg")
    alone = kind in ("topic", "parquet")
    if (alone and ({"table", "connection", "parquet"} & set(given)) - {kind}) or (not alone and "table" not in given):
        message = f"the output `{name}` needs `table`, `parquet`, `topic`, or `connection` and `table`"
        report.add("SAGA408", node, message, f"write one target, for example {_PLACES}")
        return
    mode = given["mode"].value if "mode" in given else "append"
    if mode not in _MODES.get(kind, (mode,)):
        what = {"parquet": "files behind a pointer", "topic": "a topic"}.get(kind, "a table of a database")
        report.add("SAGA409", given["mode"], f"`{mode}` is not possible for {what} (the output `{name}`)")
    needed = _REQUIRED_FIELDS.get(str(mode))
    if needed is not None and needed not in given:
        message = f"the output `{name}` has the mode `{mode}` and needs `{needed}`"
        report.add("SAGA408", node, message, _MODE_HELP[needed])
    if kind == "connection":
        _check_named_connection(draft, given["connection"], report)
    catalog = _catalog_of(draft, given["table"], report) if kind == "iceberg" else None
    if draft.root.get("publish") == "together" and not step.after_commit:
        _check_together(draft, name, node, kind, catalog, catalogs, report)


def _check_together(
    draft: SagaDraft, name: str, node: YamlNode, kind: str, catalog: str | None, catalogs: set[str], report: Report
) -> None:
    if kind != "iceberg":
        message = f"`publish: together` is one transaction of a catalog, and the output `{name}` is in none"
        report.add("SAGA409", node, message)
    elif catalog is not None:
        catalogs.add(catalog)
        properties = (draft.project.spark.catalogs if draft.project.spark else {}).get(catalog, {})
        if commits_together(properties):
            return
        type = properties.get("type")
        if type == "rest":
            message = f"the server of the catalog `{catalog}` may commit table by table"
            help = (
                f"set {MULTI_TABLE_COMMIT} = true in [catalogs.{catalog}] if it commits all tables or none, or remove "
                "`publish: together`"
            )
            report.add("SAGA409", node, message, help)
        else:
            message = f"the catalog `{catalog}` (type {type}) cannot publish several tables together"
            report.add("SAGA409", node, message)


def _check_check(draft: SagaDraft, step: StepDraft, node: YamlNode, outputs: tuple[str, ...], report: Report) -> None:
    given = children_of(node)
    if not given:
        return
    _exactly_one(given, tuple(CHECK_KINDS), node, "a check needs", report)
    output = given.get("output")
    if output is not None and isinstance(output.value, str) and outputs and output.value not in outputs:
        words = ", ".join(f"`{output}`" for output in outputs)
        help = suggestion_help(output.value, outputs, f"outputs of `{step.id}`: {words}")
        report.add("SAGA408", output, f"there is no output `{output.value}`", help)
    if "where" in given and "change" in children_of(given.get("rows")):
        message = "`change` takes no `where`, because the row counts of whole outputs are recorded"
        help = "remove `where`, or bound the part with `rows: {min: …, max: …}`"
        report.add("SAGA408", given["where"], message, help)
    rows = children_of(given.get("rows"))
    if "accept" in rows and "change" not in rows:
        message = "`accept` names the row count that `change` compares with, so it needs `change`"
        report.add("SAGA408", rows["accept"], message, "remove it, or write rows: {change: 20%, accept: …}")
    if "relationships" in given and "to" in children_of(given["relationships"]):
        _check_input(draft, step, "to", children_of(given["relationships"])["to"], report)
    if "reconcile" in given and "with" in children_of(given["reconcile"]):
        _check_input(draft, step, "with", children_of(given["reconcile"])["with"], report)


def _check_named_connection(draft: SagaDraft, node: YamlNode, report: Report) -> None:
    if isinstance(node.value, str) and "${{" not in node.value:
        check_connection(draft, "spark", node.value, "sql", node, report)
        dialect = draft.project.dialect(node.value)
        if dialect is not None and dialect != "postgresql":
            message = f"Spark steps read and write tables of PostgreSQL, and `{node.value}` is {NAMES[dialect]}"
            report.add("SAGA405", node, message, "provide the rows as Parquet files")


def _catalog_of(draft: SagaDraft, node: YamlNode, report: Report) -> str | None:
    """The catalog in a table's name; None if it is unknown."""
    table = node.value
    if not isinstance(table, str) or "${{" in table.partition(".")[0]:
        return None
    name = table.partition(".")[0]
    if "${{" not in table and table.count(".") < 2:
        catalog = min(draft.project.spark.catalogs, default="lake") if draft.project.spark is not None else "lake"
        help = f"write catalog.namespace.table, for example `{catalog}.sales.{table.rpartition('.')[2]}`"
        report.add("SAGA408", node, f"`{table}` is not a table of a catalog", help)
        return None
    if draft.project.spark is not None and name not in draft.project.spark.catalogs:
        help = suggestion_help(name, draft.project.spark.catalogs, f"add [catalogs.{name}] to saga.toml")
        report.add("SAGA411", node, f"saga.toml has no catalog `{name}`", help)
        return None
    return name


def _exactly_one(
    given: dict[str, YamlNode], names: tuple[str, ...], position: YamlNode, who: str, report: Report
) -> None:
    present = [name for name in names if name in given]
    if len(present) != 1:
        words = ", ".join(f"`{name}`" for name in names)
        named = f", and has {' and '.join(f'`{name}`' for name in present)}" if present else ""
        help = f"remove all but one of {words}" if present else f"add {' or '.join(f'`{name}: …`' for name in names)}"
        report.add("SAGA408", position, f"{who} exactly one of {words}{named}", help)
