"""One saga is found without reading all the others, and nothing is overlooked by that."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sagas.errors import UsageError
from sagas.project import Project, _mentions
from sagas.settings import load_settings

PAY = "saga: pay\nsteps: [{id: ask, uses: wait, with: {signal: go}}]\n"
SHOP = "saga: shop\nsteps: [{id: call, uses: saga, with: {name: pay, input: {}}}]\n"


def project(folder: Path, **files: str) -> Project:
    for name, text in files.items():
        (folder / f"{name}.saga.yaml").write_text(text)
    (folder / "saga.toml").write_text('definitions = ["."]\n')
    return Project(load_settings(config=str(folder / "saga.toml")))


@pytest.mark.parametrize("name", ["pay", "shop"])
def test_one_saga_is_the_same_alone_as_among_all(tmp_path: Path, name: str) -> None:
    files = {"a": PAY, "b": SHOP, "c": "saga: wrong\nstps: []\n"}
    everything = project(tmp_path, **files)
    assert set(everything.definitions) == {"pay", "shop"}
    assert project(tmp_path, **files).definition(name) == everything.definition(name)


def test_files_that_do_not_mention_the_saga_are_not_read(tmp_path: Path) -> None:
    alone = project(tmp_path, a=PAY, c="saga: wrong\nstps: []\n")
    alone.definition("pay")
    assert "_all_definitions" not in alone.__dict__


def test_a_file_with_a_longer_name_does_not_mention_the_saga(tmp_path: Path) -> None:
    longer = {f"a{number}": PAY.replace("saga: pay", f"saga: pay{number}") for number in range(3)}
    alone = project(tmp_path, b=PAY.replace("pay", "'pay'"), **longer, c="saga: pay-wrong\nstps: []\n")
    assert alone.definition("pay").saga == "pay"
    assert not _mentions(tmp_path / "a1.saga.yaml", "pay")
    assert not _mentions(tmp_path / "c.saga.yaml", "pay")


def test_of_two_definitions_of_the_same_name_none_is_used(tmp_path: Path) -> None:
    actual_project = project(tmp_path, a=PAY, b=PAY)
    with pytest.raises(UsageError, match=r"there is no valid saga pay: .* SAGA111 the saga `pay` is also defined in"):
        actual_project.definition("pay")
    assert [diagnostic.code for diagnostic in actual_project.diagnostics] == ["SAGA111", "SAGA111"]


@pytest.mark.parametrize("second", ["definitions", "definitions/sub/..", "linked", "."])
def test_a_file_to_which_several_paths_lead_is_one_definition(tmp_path: Path, second: str) -> None:
    (tmp_path / "definitions" / "sub").mkdir(parents=True)
    (tmp_path / "definitions" / "pay.saga.yaml").write_text(PAY)
    (tmp_path / "definitions" / "same.saga.yaml").symlink_to("pay.saga.yaml")
    (tmp_path / "linked").symlink_to("definitions")
    (tmp_path / "saga.toml").write_text(f'definitions = ["definitions", "{second}"]\n')
    actual_project = Project(load_settings(config=str(tmp_path / "saga.toml")))
    assert actual_project.definition("pay").saga == "pay"
    assert (list(actual_project.definitions), actual_project.diagnostics) == (["pay"], [])


def test_an_unknown_saga_is_reported_with_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean pay"):
        project(tmp_path, a=PAY).definition("pya")


def test_an_unknown_saga_is_not_hidden_by_the_mistake_in_another_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no saga named pya in .*; did you mean pay") as refused:
        project(tmp_path, a=PAY, b="saga: other\nstepz: []\n").definition("pya")
    assert "b.saga.yaml:" in (refused.value.help or "")


def test_outside_a_project_the_folder_is_named(tmp_path: Path) -> None:
    outside = Project(load_settings(tmp_path))
    with pytest.raises(UsageError, match=f"there is no saga pay, because {tmp_path} is not in a project"):
        outside.definition("pay")
    assert outside.diagnostics == []


def test_a_pipe_among_the_definitions_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "b.saga.yaml")
    assert project(tmp_path, a=PAY).definition("pay").saga == "pay"


def test_a_saga_with_mistakes_names_the_first_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no valid saga pay: .*SAGA104"):
        project(tmp_path, a=PAY.replace("steps", "stepz")).definition("pay")


AUTO = """saga: shop
steps:
  - id: put
    uses: sql
    with: {connection: CONNECTION, run: "RUN"}
    compensate: auto
  - {id: ask, uses: wait, with: {signal: go}}
"""
UPSERT = "insert into t (a, b) values (1, 2) on conflict (a) do update set b = 2"


@pytest.mark.parametrize(
    ("connection", "run", "message"),
    [
        ("embedded", UPSERT, None),
        ("lite", UPSERT, None),
        ("mine", UPSERT, "MySQL has no ON CONFLICT; write ON DUPLICATE KEY UPDATE"),
        ("maria", UPSERT, "MariaDB has no ON CONFLICT; write ON DUPLICATE KEY UPDATE"),
        ("hidden", UPSERT, "MariaDB has no ON CONFLICT; write ON DUPLICATE KEY UPDATE"),
        ("secret", UPSERT, None),
        ("lite", "insert into t (a) values (1) on duplicate key update a = 2", "SQLite has no ON DUPLICATE KEY UPDATE"),
        ("embedded", "update t set a = 1 where wher b", "a statement of PostgreSQL near"),
        ("mine", "update t set a = 1 where b = 'x'::text", "MySQL has no casts with `::`"),
        ("lite", "update t set a = 1 where b = ?", "`?` is a placeholder of SQLite"),
        ("oracle", UPSERT, "databases of `oracle:` are not supported"),
    ],
)
def test_each_connection_has_the_dialect_of_its_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, connection: str, run: str, message: str | None
) -> None:
    monkeypatch.setenv("HIDDEN_URL", "mariadb://a:b@c/d")
    monkeypatch.delenv("NO_URL", raising=False)
    project(tmp_path, a=AUTO.replace("CONNECTION", connection).replace("RUN", run))
    with (tmp_path / "saga.toml").open("a") as file:
        file.write(
            '[connections.embedded]\n[connections.lite]\nurl = "sqlite:///lite.db"\n'
            '[connections.mine]\nurl = "mysql://a@b/c"\n[connections.maria]\nurl = "mariadb+asyncmy://a@b/c"\n'
            '[connections.hidden]\nurl = {env = "HIDDEN_URL"}\n[connections.secret]\nurl = {env = "NO_URL"}\n'
            '[connections.oracle]\nurl = "oracle://a@b/c"\n'
        )
    actual_project = Project(load_settings(config=str(tmp_path / "saga.toml")))
    messages = [finding.message for finding in actual_project.diagnostics if finding.severity == "error"]
    assert len(messages) == (0 if message is None else 1), messages
    assert message is None or message in messages[0]


def test_two_phase_on_sqlite_is_refused(tmp_path: Path) -> None:
    text = (
        AUTO.replace("CONNECTION", "lite")
        .replace("RUN", "select 1")
        .replace("}\n    compensate: auto", ", two_phase: true}")
    )
    project(tmp_path, a=text)
    with (tmp_path / "saga.toml").open("a") as file:
        file.write('[connections.lite]\nurl = "sqlite:///lite.db"\n')
    (finding,) = Project(load_settings(config=str(tmp_path / "saga.toml"))).diagnostics
    assert (finding.code, finding.line) == ("SAGA423", 5)
    assert finding.message == "SQLite has no prepared transactions (connection `lite`)"
