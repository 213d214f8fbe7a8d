"""Files that are read or executed belong to the user or to root: each place checks it, or has a reason."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from saga_cli import main
from saga_spark.job.job_execution import load_function
from saga_spark.settings import SparkSettings
from saga_workers.devstack.dev_folder import DevFolder
from saga_workers.runtime.schema_file import schema_text
from sagas.errors import UsageError
from sagas.project import Project
from sagas.settings import SqlConnection, load_settings
from sagas.settings.private_files import open_private_log, write_private_text

ROOT = Path(__file__).parents[3]
ROOMS = ("sagas/sagas", "activities/saga_activities", "workers/saga_workers", "cli/saga_cli", "spark_steps/saga_spark")
READS = (
    *("open", "fdopen", "read_text", "read_bytes", "read_bounded"),
    *("import_module", "exec_module", "spec_from_file_location"),
)
CALLS_OF_READS = re.compile(rf"\b(?:{'|'.join(READS)})\(")
"""A file without such a call need not be parsed, which takes most of the time."""

CHECKS = ("require_own", "require_own_modules", "require_own_stack")

CHECKED_BEFORE = {
    "sagas/settings/dev_stack.py:_is_copy": "read_dev_file has checked the folder",
    "sagas/settings/dev_stack.py:_has_ended": "read_dev_file has checked the folder",
    "sagas/settings/toml_files.py:read_toml": "its callers check the file",
    "sagas/settings/loader.py": "checked at the beginning of the load",
    "sagas/project.py:_mentions": "only the files that it finds are parsed, which are checked then",
    "sagas/definition/loader.py": "the project checks the files that it passes",
    "sagas/actions/registry.py": "the project checks the modules before they are imported",
    "saga_workers/devstack/dev_folder.py": "DevFolder checks itself when it is made",
    "saga_workers/devstack/project_processes.py": "a digest of the file of a DevFolder",
    "saga_workers/devstack/stack.py": "logs of a DevFolder, whose links are checked",
    "saga_workers/devstack/postgres_server.py": "in a DevFolder; on some machines the user of PostgreSQL owns it",
    "saga_workers/topics/kafka_use.py": "searched for words, never executed",
    "saga_workers/topics/declared_readers.py": "searched for words, never executed",
    "saga_cli/commands/begin/dev.py": "logs of a DevFolder, whose links are checked",
    "saga_cli/revisions/definitions.py:read_separately": "in a folder that this process has just made for itself",
    "saga_cli/definition_checks.py": "the settings file, which the loader has checked",
}
NAMED_BY_THE_USER = {
    "sagas/text/bounded_files.py": "the reader itself; each caller is in one of these tables",
    "sagas/settings/secrets.py": "a secret, often another user's (a mounted one): a value, not code",
    "sagas/settings/signing_keys.py:_create_key": "writes the key",
    "sagas/settings/private_files.py": "writes, and follows no link",
    "saga_cli/option_texts.py": "a value of an option that the command line names",
    "saga_cli/inputs.py": "an input or a definition that the command line names",
    "saga_cli/input_files.py": "rows that the command line names",
    "saga_cli/preview/rendering.py:saga_name": "searched for a name, never executed",
    "saga_cli/preview/rendering.py:_main": "the standard output of this process",
    "saga_cli/commands/operate/decrypt.py": "a text that the command line names",
    "saga_cli/commands/operate/reconcile.py": "a time that the command line names",
    "saga_workers/temporal/temporal_client.py:_read_pem": "a certificate or a key, often another user's: no code",
    "saga_spark/storage.py": "data of a stage or a warehouse",
    "saga_spark/sinks/parquet/parquet_pointer.py": "data of a warehouse, which has writers of its own",
    "saga_spark/reconcile/output_checks.py": "data of a warehouse",
}
OWN_PACKAGE = {
    "saga_activities/automatic/table_access.py": "a function of that name that reads no file",
    "sagas/__init__.py": "modules of this package",
    "sagas/settings/__init__.py": "modules of this package",
    "sagas/workflow/json_payloads.py": "a payload, no file",
    "saga_cli/main.py": "modules of this package, /dev/null",
    "saga_cli/commands/begin/patterns.py": "files of this package",
    "saga_cli/commands/begin/init.py": "files of this package",
    "saga_cli/commands/run/open.py": "opens a browser",
    "saga_spark/sinks/sink.py": "modules of this package",
    "saga_spark/runner/__main__.py": "modules of this package, pipes, /dev/null",
    "saga_spark/runner/java.py": "next to the installed packages, a lock",
    "saga_spark/runner/spark_session.py": "the private scratch folder of the runner; sessions of Spark",
    "saga_spark/runner/runner_process.py": "pipes to the runner",
    "saga_spark/runner/task_context.py": "a session of Spark",
    "saga_spark/runner/class_data_sharing.py": "a session of Spark",
    "saga_spark/reconcile/work_folder.py": "a lock in a private folder, of which nothing is read",
    "saga_workers/devstack/locked_jars.py": "jars, each compared with its hash; a lock file of this package",
    "saga_workers/participant/participant_test.py": "a consumer of Kafka",
    "sagas/settings/dev_stack.py:start_mark": "/proc",
    "sagas/settings/dev_stack.py:_boot_id": "/proc",
    "saga_workers/runtime/process_identity.py": "/proc",
}
REASONS = CHECKED_BEFORE | NAMED_BY_THE_USER | OWN_PACKAGE


def places() -> Iterator[tuple[str, str, int]]:
    """File, function and line of each read of a file, and of each import by name, that its function does not check."""
    for folder in ROOMS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            source = path.read_text(encoding="utf-8")
            if not CALLS_OF_READS.search(source):
                continue
            tree = ast.parse(source)
            name = str(path.relative_to((ROOT / folder).parent))
            functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
            for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
                if called(call) not in READS:
                    continue
                around = [
                    function for function in functions if function.lineno <= call.lineno <= (function.end_lineno or 0)
                ]
                if not any(checks(function) for function in around):
                    yield name, around[-1].name if around else "", call.lineno


def called(call: ast.Call) -> str:
    """The name of the called function, without what it is an attribute of."""
    match call.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def checks(function: ast.AST) -> bool:
    return any(isinstance(node, ast.Call) and called(node) in CHECKS for node in ast.walk(function))


def test_each_place_that_reads_a_file_checks_its_owner_or_has_a_reason() -> None:
    used, unknown = set(), []
    for name, function, line in places():
        reason = next((key for key in (f"{name}:{function}", name) if key in REASONS), None)
        if reason is None:
            unknown.append(f"{name}:{line} in {function or 'the module'}")
        else:
            used.add(reason)
    assert unknown == [], "check with require_own who owns the file, or add the place with its reason"
    assert REASONS.keys() - used == set(), "nothing is read there any more"


needs_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give a file to another user"
)
STRANGER = 54321


def give_away(path: Path) -> None:
    os.chown(path, STRANGER, STRANGER, follow_symlinks=False)


@needs_root
@pytest.mark.parametrize(
    "given", [".saga", ".saga/dev", ".saga/dev/ID", ".saga/dev/worker.json", ".saga/dev/logs", ".saga/dev/logs/x.log"]
)
def test_a_stack_with_a_record_of_another_user_is_refused(tmp_path: Path, given: str) -> None:
    """`saga dev down` ends the processes that the records name."""
    DevFolder(tmp_path).create()
    for name in ("ID", "worker.json", "logs/x.log"):
        (tmp_path / ".saga/dev" / name).write_text("{}", encoding="utf-8")
    (tmp_path / ".saga/dev.toml").write_text('[temporal]\naddress = "127.0.0.1:1"\n', encoding="utf-8")
    DevFolder(tmp_path)
    load_settings(tmp_path, env={})
    give_away(tmp_path / given)
    with pytest.raises(UsageError, match=f"{given} belongs to another user"):
        DevFolder(tmp_path)
    with pytest.raises(UsageError, match=f"{given} belongs to another user"):
        load_settings(tmp_path, env={})


def test_no_log_follows_a_link(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("mine", encoding="utf-8")
    (tmp_path / "worker.log").symlink_to(target)
    with pytest.raises(OSError, match="symbolic links"):
        open_private_log(tmp_path / "worker.log")
    with pytest.raises(OSError, match="symbolic links"):
        write_private_text(tmp_path / "worker.log", "other")
    assert target.read_text(encoding="utf-8") == "mine"


@needs_root
@pytest.mark.parametrize("given", ["", "jobs_of_others.py", "package_of_others", "package_of_others/inner.py"])
def test_a_job_of_another_user_is_not_imported(tmp_path: Path, given: str) -> None:
    text = "raise SystemExit('executed')\n"
    (tmp_path / "jobs_of_others.py").write_text(text, encoding="utf-8")
    (tmp_path / "package_of_others").mkdir()
    (tmp_path / "package_of_others/__init__.py").touch()
    (tmp_path / "package_of_others/inner.py").write_text(text, encoding="utf-8")
    give_away(tmp_path / given)
    module = "package_of_others.inner" if "package" in given else "jobs_of_others"
    with pytest.raises(UsageError, match="belongs to another user"):
        load_function(f"{module}:run", SparkSettings(root=tmp_path, python_path=(str(tmp_path),)))


@needs_root
def test_definitions_that_are_read_again_are_checked_again(tmp_path: Path) -> None:
    definition = tmp_path / "own.saga.yaml"
    definition.write_text("saga: own\nsteps: [{id: a, uses: wait, with: {signal: go}}]\n", encoding="utf-8")
    (tmp_path / "saga.toml").write_text('definitions = ["."]\n', encoding="utf-8")
    settings = load_settings(tmp_path, env={})
    assert list(Project(settings).definitions) == ["own"]
    give_away(definition)
    with pytest.raises(UsageError, match="belongs to another user"):
        _ = Project(settings).definitions


@needs_root
@pytest.mark.parametrize("named", [True, False])
def test_definitions_of_another_user_are_not_validated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], named: bool
) -> None:
    definition = tmp_path / "own.saga.yaml"
    definition.write_text("saga: own\nsteps: [{id: a, uses: wait, with: {signal: go}}]\n", encoding="utf-8")
    (tmp_path / "saga.toml").write_text('definitions = ["."]\n', encoding="utf-8")
    arguments = ["validate", *([str(definition)] if named else []), "--config", str(tmp_path)]
    assert main.run(arguments) == 0
    give_away(definition)
    assert main.run(arguments) == 2
    assert f"own.saga.yaml belongs to another user (uid {STRANGER})" in capsys.readouterr().err


@needs_root
def test_a_schema_of_another_user_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "schema.sql").write_text("drop table x", encoding="utf-8")
    connection = SqlConnection(name="shop", root=tmp_path, url_setting="sqlite:///shop.db", schema_setting="schema.sql")
    assert schema_text(connection) == "drop table x"
    give_away(tmp_path / "schema.sql")
    with pytest.raises(UsageError, match="belongs to another user"):
        schema_text(connection)
