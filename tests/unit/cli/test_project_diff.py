"""`saga diff` for git revisions: all sagas of a project, each version checked against its own actions."""

from __future__ import annotations

import json
import subprocess
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from saga_cli import main
from saga_cli.revisions.definitions import read_definitions
from sagas.presentation.project_diff import ProjectDefinitions
from sagas.settings import load_settings
from sagas.text.exact_json import decode_json, encode_json

ACTIONS = """
from sagas import Step, action


@action("shop.{name}", connection="shop")
async def reserve(step: Step, sku: str) -> dict:
    return {{}}


@action("shop.release", connection="shop")
async def release(step: Step, sku: str) -> None: ...
"""

CHECKOUT = """saga: checkout
input: {type: object, required: [sku], properties: {sku: {type: string}}}
steps:
  - id: reserve
    uses: shop.reserve
    with: {sku: "${{ input.sku }}"}
    compensate: shop.release
"""


STARTED = """saga: started
id: "s-${{ input.id }}"
input: {type: object, properties: {id: {type: string}, rate: {type: number}}}
undo_leaves: [stock]
triggers:
  kafka:
    - {topic: orders, filter: trigger.value.rate > 0.10, input: {id: "${{ trigger.value.id }}", rate: 0.10}}
    - {topic: paid, signal: paid, id: "s-${{ trigger.value.id }}"}
  schedule: {cron: "0 4 * * *", timezone: Europe/Berlin, jitter: 30s, input: {id: "${{ vars.shop }}", rate: 0.10}}
steps:
  - {id: pay, uses: wait, with: {signal: paid, timeout: 1h, on_timeout: reject}}
  - {id: reserve, uses: shop.reserve, with: {sku: "${{ vars.shop }}"}, compensate: shop.release, commutative: true}
"""

# Every section that may decide how a definition is read.
SETTINGS = """actions = ["./actions.py"]
[vars]
shop = "A"
[connections.shop]
url = "sqlite:///shop.db"
[kafka]
bootstrap_servers = "127.0.0.1:9"
outbox = "shop"
[codec]
key = {env = "NO_SUCH_KEY"}
"""


def git(*words: str) -> None:
    subprocess.run(["git", "-c", "user.name=test", "-c", "user.email=test@test", *words], check=True)


@pytest.fixture(autouse=True)
def _repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repository with the project `shop` in a folder of it, and a commit on the branch `main`."""
    for name in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"):
        monkeypatch.delenv(name, raising=False)
    shop = tmp_path / "shop"
    (shop / "definitions").mkdir(parents=True)
    monkeypatch.chdir(shop)
    Path("definitions/checkout.saga.yaml").write_text(CHECKOUT)
    Path("definitions/old.saga.yaml").write_text(CHECKOUT.replace("saga: checkout", "saga: old"))
    Path("actions.py").write_text(ACTIONS.format(name="reserve"))
    Path("saga.toml").write_text('actions = ["./actions.py"]\n[connections.shop]\nurl = "sqlite:///shop.db"\n')
    git("init", "-q", "-b", "main", str(tmp_path))
    git("add", "-A")
    git("commit", "-qm", "first")


def _change() -> None:
    """Rename an action with its step's name of it, add a saga and remove one."""
    Path("actions.py").write_text(ACTIONS.format(name="take"))
    changed = CHECKOUT.replace("shop.reserve", "shop.take")
    Path("definitions/checkout.saga.yaml").write_text(changed)
    Path("definitions/new.saga.yaml").write_text(changed.replace("saga: checkout", "saga: new"))
    Path("definitions/old.saga.yaml").unlink()


def _diff(capsys: pytest.CaptureFixture[str], *words: str, code: int = 8) -> Any:
    capsys.readouterr()
    assert main.run(["diff", *words, "-o", "json"]) == code
    return json.loads(capsys.readouterr().out)


def _status() -> bytes:
    """The files that differ from the commit, without what Python compiles."""
    words = ["git", "status", "--short", "--", ".", ":(exclude)__pycache__"]
    return subprocess.run(words, capture_output=True, check=True).stdout


def _commit_started_saga() -> Path:
    """A commit with a saga that events and times start, in a project that uses the sections of saga.toml."""
    Path("saga.toml").write_text(SETTINGS)
    started = Path("definitions/started.saga.yaml")
    started.write_text(STARTED)
    git("add", "-A")
    git("commit", "-qm", "started")
    return started


def test_nothing_has_changed(capsys: pytest.CaptureFixture[str]) -> None:
    _commit_started_saga()

    document = _diff(capsys, "main...", code=0)

    assert (document["same"], document["sagas"], document["unchanged"]) == (True, [], 3)


def test_other_times_and_events_in_two_revisions(capsys: pytest.CaptureFixture[str]) -> None:
    started = _commit_started_saga()
    changed = STARTED.replace("0 4 * * *", "0 9 * * *").replace("rate > 0.10", "rate > 0.20")
    started.write_text(changed.replace("topic: paid", "topic: payments").replace("timeout: 1h", "timeout: 2h"))
    git("commit", "-qam", "changed")

    [saga] = _diff(capsys, "HEAD~1..HEAD")["sagas"]

    changes = {change["field"]: change for change in saga["changes"]}
    assert set(changes) == {"schedule", "triggers", "triggers (signals)", "with"}
    assert {change["change"] for change in changes.values()} == {"changed"}
    schedule = changes["schedule"]
    assert (schedule["old"]["cron"], schedule["new"]["cron"]) == ("0 4 * * *", "0 9 * * *")


def test_definitions_of_another_process_are_whole() -> None:
    """Each field is read back, also those that are no part of a run."""
    _commit_started_saga()
    definitions = read_definitions(load_settings(config="saga.toml"))

    restored = ProjectDefinitions.from_json(decode_json(encode_json(definitions.to_json())))

    for name, placed in definitions.definitions.items():
        definition = restored.definitions[name].definition
        for field in fields(placed.definition):
            assert getattr(definition, field.name) == getattr(placed.definition, field.name), field.name
    steps = restored.definitions["started"].definition.steps
    assert [step.commutative for step in steps] == [False, True]


def test_each_version_has_its_own_actions(capsys: pytest.CaptureFixture[str]) -> None:
    git("checkout", "-qb", "feature")
    _change()
    git("add", "-A")
    git("commit", "-qm", "second")

    document = _diff(capsys, "main..feature")

    changes = {saga["saga"]: saga["change"] for saga in document["sagas"]}
    assert changes == {"checkout": "changed", "new": "added", "old": "removed"}
    [checkout] = [saga for saga in document["sagas"] if saga["saga"] == "checkout"]
    assert checkout["running_sagas"]["still_needed"]["actions"] == ["shop.reserve"]
    [old] = [saga for saga in document["sagas"] if saga["saga"] == "old"]
    assert old["running_sagas"]["still_needed"]["actions"] == ["shop.release", "shop.reserve"]
    assert (document["old_errors"], document["new_errors"], document["same"]) == ([], [], False)


def test_files_that_are_not_committed_count_and_stay_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    _change()
    git("add", "actions.py")
    before = _status()

    assert {saga["saga"] for saga in _diff(capsys, "HEAD..")["sagas"]} == {"checkout", "new", "old"}

    assert _status() == before


def test_what_only_main_has_got_since_is_no_change_of_the_branch(capsys: pytest.CaptureFixture[str]) -> None:
    git("branch", "feature")
    _change()
    git("add", "-A")
    git("commit", "-qm", "second")
    git("checkout", "-q", "feature")

    assert _diff(capsys, "main...", code=0) == {
        "same": True, "sagas": [], "unchanged": 2, "old_errors": [], "new_errors": [],
    }  # fmt: skip
    assert not _diff(capsys, "main..")["same"]


def test_a_definition_with_errors_is_neither_removed_nor_added(capsys: pytest.CaptureFixture[str]) -> None:
    Path("definitions/checkout.saga.yaml").write_text(CHECKOUT + "stepz: []\n")

    document = _diff(capsys, "HEAD..")

    assert [(saga["saga"], saga["change"]) for saga in document["sagas"]] == [("checkout", "unreadable")]
    assert [error["file"] for error in document["new_errors"]] == ["definitions/checkout.saga.yaml"]


def test_annotations_name_the_lines_of_the_repository(capsys: pytest.CaptureFixture[str]) -> None:
    _change()
    assert main.run(["diff", "HEAD..", "--format", "github"]) == 8
    lines = capsys.readouterr().out.splitlines()
    step = next(line for line in lines if "checkout, uses" in line)
    assert step.startswith("::notice file=shop/definitions/checkout.saga.yaml,line=5,")
    [removed] = [line for line in lines if "old: running sagas still need" in line]
    assert removed.startswith("::warning file=shop/definitions/old.saga.yaml,line=1,")
    assert "actions shop.release, shop.reserve" in removed

    assert main.run(["diff", "HEAD..", "--format", "sarif"]) == 8
    document = json.loads(capsys.readouterr().out)
    [run] = document["runs"]
    assert (document["version"], run["tool"]["driver"]["name"]) == ("2.1.0", "saga diff")
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    annotations = []
    for result in run["results"]:
        assert rules[result["ruleIndex"]] == result["ruleId"]
        [place] = [location["physicalLocation"] for location in result["locations"]]
        level = {"note": "notice"}.get(result["level"], result["level"])
        file, line = place["artifactLocation"]["uri"], place["region"]["startLine"]
        annotations.append(f"::{level} file={file},line={line},")
        assert result["message"]["text"].strip()
    assert [line[: len(start)] for line, start in zip(lines, annotations, strict=True)] == annotations


def test_for_people(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _change()
    page = tmp_path / "diff.html"
    assert main.run(["diff", "HEAD..", "--html", str(page)]) == 8
    text = capsys.readouterr().out
    assert "checkout  " in text
    assert "new  a new saga" in text
    assert "old  removed" in text
    kept = "until those have ended, and can no longer be undone, keep the actions shop.release, shop.reserve"
    assert kept in text
    assert kept in page.read_text(encoding="utf-8")
    assert "<h1>HEAD..</h1>" in page.read_text(encoding="utf-8")


def test_a_project_that_the_old_revision_does_not_have(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "definitions").mkdir(parents=True)
    (other / "saga.toml").write_text("")
    (other / "definitions" / "wait.saga.yaml").write_text("saga: wait\nsteps: [{id: a, uses: pass}]\n")
    capsys.readouterr()
    assert main.run(["--config", str(other), "diff", "HEAD..", "-o", "json"]) == 8
    printed = capsys.readouterr()
    assert [saga["change"] for saga in json.loads(printed.out)["sagas"]] == ["added"]
    assert "HEAD has no other/saga.toml, and git knows no folder from which it was moved" in printed.err


def test_a_folder_that_was_moved_is_compared_with_what_it_was(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("some shops").mkdir()
    git("mv", "shop", "some shops/one")
    monkeypatch.chdir(tmp_path / "some shops" / "one")
    checkout, settings = Path("definitions/checkout.saga.yaml"), Path("saga.toml")
    checkout.write_text(CHECKOUT.replace("    compensate", "    timeout: 5s\n    compensate"))
    settings.write_text(f"# {'moved ' * 100}\n{settings.read_text()}")  # too different for a rename of its own
    git("add", "-A", ".")

    document = _diff(capsys, "HEAD..")

    assert [(saga["saga"], saga["change"]) for saga in document["sagas"]] == [("checkout", "changed")]
    git("commit", "-q", "-m", "moved")
    assert _diff(capsys, "HEAD~..HEAD") == document
    _diff(capsys, "HEAD..", code=0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere.."], "there is no revision nowhere in"),
        (["--", "--output=x.."], "--output=x is not a git revision"),
        (["two\nlines.."], "there is no revision two\\nlines in"),
        (["main:shop.."], "there is no revision main:shop in"),
        (["checkout"], "NEW is missing"),
        (["checkout", "old", "--format", "sarif"], "--format is for revisions"),
    ],
)
def test_mistakes(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["diff", *words]) == 2
    assert message in capsys.readouterr().err


def test_revisions_without_a_commit_in_common(capsys: pytest.CaptureFixture[str]) -> None:
    git("checkout", "-q", "--orphan", "unrelated")
    git("commit", "-qm", "first of another history")
    assert main.run(["diff", "main..."]) == 2
    message = capsys.readouterr().err
    assert "main and HEAD have no commit in common" in message
    assert "git fetch --unshallow" in message


def test_definitions_in_a_submodule_are_not_called_new(capsys: pytest.CaptureFixture[str]) -> None:
    git("rm", "-rq", "--cached", "definitions")
    git("update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},shop/definitions")
    git("commit", "-qm", "submodule")
    assert main.run(["diff", "HEAD.."]) == 2
    assert "shop/definitions is a submodule" in capsys.readouterr().err


def test_file_names_and_symbolic_links_of_a_revision(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A revision may put links where the command writes, and names that end a line of its output."""
    victim = tmp_path / "victim"
    victim.write_text("as before")
    Path("saga.toml").rename("settings.toml")
    Path("saga.toml").symlink_to("settings.toml")
    for name in (".saga-definitions.json", "definitions.json"):
        Path(name).symlink_to(victim)
    Path("json.py").write_text("raise SystemExit('imported from the project')")
    git("add", "-A")
    git("commit", "-qm", "links")
    definition = Path("definitions/two\n::error::lines.saga.yaml")
    definition.write_text("saga: two\nsteps: [{id: a, uses: pass}]\n")

    assert main.run(["diff", "HEAD..", "--format", "github"]) == 8

    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("::notice file=shop/definitions/two%0A%3A%3Aerror%3A%3Alines.saga.yaml,line=1,")
    assert victim.read_text() == "as before"


def test_an_old_revision_whose_actions_cannot_be_imported(capsys: pytest.CaptureFixture[str]) -> None:
    Path("actions.py").write_text("import no_such_module\n")
    git("commit", "-qam", "broken")
    Path("actions.py").write_text(ACTIONS.format(name="reserve"))

    assert main.run(["diff", "HEAD.."]) == 2

    message = capsys.readouterr().err
    assert "the project at HEAD cannot be read" in message
    assert "no_such_module" in message


def test_without_a_repository(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".git").rename(tmp_path / "elsewhere")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert main.run(["diff", "main.."]) == 2
    assert "not a git repository" in capsys.readouterr().err
