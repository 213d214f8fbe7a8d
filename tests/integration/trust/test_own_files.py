"""Files that are read or executed belong to the user or to root: each place checks it, or has a reason."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from saga_cli import main
from saga_spark.job.job_execution import load_function, run_program
from saga_spark.job.job_spec import Job
from saga_spark.runner.task_context import TaskContext
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
    *("import_module", "exec_module", "spec_from_file_location", "run_path", "run_module", "copyfile", "copytree"),
)
STARTS = ("Popen", "create_subprocess_exec", "create_subprocess_shell", "execv", "execve", "execvp", "execvpe")
"""Of programs, and ``subprocess.run``."""

CALLS_OF_READS = re.compile(rf"\b(?:{'|'.join(READS)})\(")
"""A file without such a call need not be parsed, which takes most of the time."""

CHECKS = ("require_own", "require_own_modules", "require_own_stack")

CHECKED_BEFORE = {
    "sagas/settings/dev_stack.py:_is_copy": "read_dev_file has checked the folder",
    "sagas/settings/dev_stack.py:_has_ended": "read_dev_file has checked the folder",
    "sagas/settings/toml_files.py:read_toml": "its callers check the file",
    "sagas/settings/loader.py:_place": "checked at the beginning of the load",
    "sagas/project.py:_mentions": "only the files that it finds are parsed, which are checked then",
    "sagas/definition/loader.py:load_definitions,_is_definition": "the project checks the files that it passes",
    "sagas/actions/registry.py:_load_module,_load_file": "the project checks the modules before they are imported",
    "saga_workers/devstack/dev_folder.py:owner,read,write_atomically": "DevFolder checks itself when it is made",
    "saga_workers/devstack/project_processes.py:fingerprint": "a digest of the file of a DevFolder",
    "saga_workers/devstack/stack.py:_addresses,_cause": "logs of a DevFolder, whose links are checked",
    "saga_workers/devstack/postgres_server.py:_superuser_password": "in a DevFolder, or of PostgreSQL's user",
    "saga_workers/devstack/postgres_server.py:_remove_stale_pid_file": "in a DevFolder, or of PostgreSQL's user",
    "saga_workers/topics/kafka_use.py:_file_bytes": "searched for words, never executed",
    "saga_workers/topics/declared_readers.py:declares_readers": "searched for words, never executed",
    "saga_cli/commands/begin/dev.py:_print_log": "logs of a DevFolder, whose links are checked",
    "saga_cli/revisions/definitions.py:read_separately": "in a folder that this process has just made for itself",
    "saga_cli/definition_checks.py:_position_in_settings": "the settings file, which the loader has checked",
}
NAMED_BY_THE_USER = {
    "sagas/text/bounded_files.py:read_bounded": "the reader itself; each caller is in one of these tables",
    "sagas/settings/secrets.py:resolve_secret": "a secret, often another user's (a mounted one): a value, not code",
    "sagas/settings/signing_keys.py:_create_key": "writes the key",
    "sagas/settings/private_files.py:open_private_log,write_private_text": "writes, and follows no link",
    "saga_cli/option_texts.py:parse_json,read_text": "a value of an option that the command line names",
    "saga_cli/inputs.py:read_definition": "an input or a definition that the command line names",
    "saga_cli/input_files.py:_open_text,_open_bytes": "rows that the command line names",
    "saga_cli/preview/rendering.py:saga_name": "searched for a name, never executed",
    "saga_cli/preview/rendering.py:_main": "the standard output of this process",
    "saga_cli/commands/operate/decrypt.py:_lines": "a text that the command line names",
    "saga_cli/commands/operate/reconcile.py:_parse_since": "a time that the command line names",
    "saga_workers/temporal/temporal_client.py:_read_pem": "a certificate or a key, often another user's: no code",
    "saga_workers/undo_check/sqlite_copies.py:copy": "a copy that it has just made",
    "saga_spark/storage.py:fsync_path,write_once": "data of a stage or a warehouse",
    "saga_spark/sinks/parquet/parquet_pointer.py:read_pointer,locked,read,read_version": "data of a warehouse",
    "saga_spark/sinks/parquet/parquet_pointer.py:delete_unneeded_versions": "a lock in a warehouse, which others write",
    "saga_spark/reconcile/output_checks.py:_published_targets": "data of a warehouse",
}
OWN_PACKAGE = {
    "saga_activities/automatic/table_access.py:_key,image": "a function of that name that reads no file",
    "sagas/__init__.py:__getattr__": "modules of this package",
    "sagas/settings/__init__.py:__getattr__": "modules of this package",
    "sagas/workflow/json_payloads.py:first_value,failure_details": "a payload, no file",
    "saga_cli/main.py:run_command,_run": "modules of this package, /dev/null",
    "saga_cli/commands/begin/patterns.py:pattern_files": "files of this package",
    "saga_cli/commands/begin/init.py:_files,_templates": "files of this package",
    "saga_cli/commands/run/open.py:open_saga": "opens a browser",
    "saga_spark/sinks/sink.py:sink_for": "modules of this package",
    "saga_spark/runner/__main__.py:main,import_spark,find_task": "modules of this package, pipes, /dev/null",
    "saga_spark/runner/java.py:write_class_archive": "next to the installed packages, a lock",
    "saga_spark/runner/spark_session.py:write_properties_file,log_crash_report": "the private folder of the runner",
    "saga_spark/runner/runner_process.py:_reader_of": "pipes to the runner",
    "saga_spark/runner/task_context.py:spark": "a session of Spark",
    "saga_spark/runner/class_data_sharing.py:_record_classes": "a session of Spark",
    "saga_spark/reconcile/work_folder.py:open_work_folder,_remove_left_folders": "a lock, of which nothing is read",
    "saga_workers/devstack/locked_jars.py:folder,jars,_sha256": "jars, each compared with its hash",
    "saga_workers/devstack/locked_jars.py:_exclusive": "a lock, of which nothing is read",
    "saga_workers/participant/participant_test.py:_run_checks": "a consumer of Kafka",
    "sagas/settings/dev_stack.py:start_mark": "/proc",
    "sagas/settings/dev_stack.py:_boot_id": "/proc",
    "saga_workers/runtime/process_identity.py:_pid_namespace": "/proc",
}
REASONS = CHECKED_BEFORE | NAMED_BY_THE_USER | OWN_PACKAGE
PROGRAMS = {
    "saga_workers/doctor/spark_checks.py:_check_java": "Java, by PATH or JAVA_HOME of the user",
    "saga_workers/devstack/postgres_client.py:exec_psql": "of an installed package",
    "saga_workers/devstack/postgres_server.py:prepare,not_ready": "of an installed package",
    "saga_workers/devstack/postgres_server.py:unprivileged_command": "by PATH of the user",
    "saga_workers/devstack/os_process.py:start_process": "what the parts of the stack give it",
    "saga_workers/devstack/temporal_server.py:on_ready": "by PATH of the user, or of an installed package",
    "saga_workers/devstack/kafka_server.py:prepare,_start_once": "Java with jars that are compared with their hashes",
    "saga_workers/devstack/locked_jars.py:_fetch": "Java with a jar of an installed package",
    "saga_workers/undo_check/postgresql_copies.py:_restore_dump": "by PATH of the user, or of an installed package",
    "saga_cli/revisions/git.py:_git": "by PATH of the user",
    "saga_cli/revisions/definitions.py:read_separately": "this Python, which loads the project as a command does",
    "saga_cli/preview/rendering.py:render": "this Python, which loads the project as a command does",
    "saga_cli/commands/begin/demo.py:demo": "this Python with the demo of this package",
    "saga_spark/runner/runner_process.py:start": "this Python with a module of this package",
    "saga_spark/runner/class_data_sharing.py:_record_in_subprocess": "this Python with a module of this package",
}


def places(calls: re.Pattern[str], names: Collection[str]) -> Iterator[tuple[str, str, int]]:
    """File, function and line of each call of these names, if its function does not check the owner of the file."""
    for folder in ROOMS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            source = path.read_text(encoding="utf-8")
            if not calls.search(source):
                continue
            tree = ast.parse(source)
            name = str(path.relative_to((ROOT / folder).parent))
            functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
            for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
                if called(call) not in names and ast.unparse(call.func) not in names:
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


def without_reason(calls: re.Pattern[str], names: Collection[str], reasons: Mapping[str, str]) -> list[str]:
    """The places that neither check an owner nor have a reason, and the reasons of no place."""
    expected = {
        f"{file}:{function}" for key in reasons for file, _, all in [key.partition(":")] for function in all.split(",")
    }
    used, unknown = set[str](), list[str]()
    for name, function, line in places(calls, names):
        used.add(f"{name}:{function}")
        if f"{name}:{function}" not in expected:
            unknown.append(f"{name}:{line} in {function or 'the module'}")
    return [*unknown, *(f"nothing is read any more in {place}" for place in sorted(expected - used))]


def test_each_place_that_reads_a_file_checks_its_owner_or_has_a_reason() -> None:
    """If this fails: check with require_own who owns the file, or add the function with its reason."""
    assert without_reason(CALLS_OF_READS, READS, REASONS) == []


def test_each_program_that_is_started_has_a_reason() -> None:
    calls = re.compile(rf"\b(?:{'|'.join(STARTS)}|subprocess\.run)\(")
    assert without_reason(calls, {*STARTS, "subprocess.run"}, PROGRAMS) == []


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
def test_a_program_of_another_user_is_not_submitted_to_spark(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("raise SystemExit('executed')\n", encoding="utf-8")
    give_away(tmp_path / "program.py")
    context = cast("TaskContext", SimpleNamespace(settings=SparkSettings(root=tmp_path)))
    job = cast("Job", SimpleNamespace(code={"main": "program.py"}, conf={}))
    with pytest.raises(UsageError, match=r"program\.py belongs to another user"):
        run_program(context, job, {}, {"out": str(tmp_path / "out")})


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
