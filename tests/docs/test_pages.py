"""Promises that pages make by their form: links that lead somewhere, nothing of one machine, a valid first saga."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from sagas.actions.registry import Action
from sagas.definition.loader import parse_text
from sagas.definition.parser.draft import ProjectContext

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(path for room in ROOT.iterdir() if room.name[0] != "." for path in room.glob("README.md")),
        *(ROOT / "definitions").rglob("README.md"),
    ]
)
GENERATED = {ROOT / "docs/reference" / name for name in ("cli.md", "diagnostics.md")}
HAND_WRITTEN = [page for page in PAGES if page not in GENERATED]
HOW_TO = [ROOT / "docs/tutorial.md", *(page for page in PAGES if "how-to" in page.parts)]
MAX_LINE_LENGTH = 120
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
TEST_FILE = re.compile(r"`((?:tests/[\w/]+/)?test_\w+\.py)`")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
# Built from parts, so that this file does not name what it forbids.
MACHINE = re.compile(
    "|".join(["/" + "work/", "/" + "root/", "/" + "home/[a-z]", r"\.\./" + "shared", "/" + "tmp/bash"])
)
DOWNLOADS = re.compile(
    r"https?://[^\s)\"']*(?:files\.pythonhosted|pypi\.org/simple|\.whl|\.tar\.gz|/releases/download)"
)


def anchors(page: Path) -> set[str]:
    """The anchors of the headings, as the usual forges make them."""
    lines = FENCE.sub("", page.read_text(encoding="utf-8")).splitlines()
    heads = [line.lstrip("#").strip().lower() for line in lines if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", head).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    for link in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {link}"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{page.name} links to {link}: no such heading"


@pytest.mark.parametrize("page", HOW_TO, ids=lambda page: str(page.relative_to(ROOT)))
def test_how_to_pages_end_with_the_version_that_they_were_tried_with(page: Path) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    last = page.read_text(encoding="utf-8").splitlines()[-1]
    assert re.fullmatch(rf"Tried with version {re.escape(version)}([, ].*)?\.", last), last


def test_tests_that_pages_name_exist() -> None:
    """Pages name a test with or without its folder; the tutorial, which names one of its own project, is not read."""
    files = [path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")]
    pages = [page for folder in ("contributing", "explanation") for page in (ROOT / "docs" / folder).glob("*.md")]
    named = {name for page in pages for name in TEST_FILE.findall(page.read_text(encoding="utf-8"))}
    assert len(named) > 40
    assert sorted(name for name in named if not any(f"/{file}".endswith(f"/{name}") for file in files)) == []


def test_every_page_is_in_the_index() -> None:
    index = ROOT / "docs/index.md"
    linked = {(index.parent / link.partition("#")[0]).resolve() for link in LINK.findall(index.read_text("utf-8"))}
    lost = [str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md") if page not in linked | {index}]
    assert not lost


@pytest.mark.parametrize("page", HAND_WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_begins_with_its_only_title(page: Path) -> None:
    lines = FENCE.sub("", page.read_text(encoding="utf-8")).splitlines()
    assert [number for number, line in enumerate(lines) if line.startswith("# ")] == [0]


@pytest.mark.parametrize("page", HAND_WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_are_wrapped(page: Path) -> None:
    lines = FENCE.sub("", page.read_text(encoding="utf-8")).splitlines()
    # A table cannot be wrapped, nor can a line that is one link.
    prose = [line for line in lines if not line.lstrip().startswith("|") and " " in line.strip()]
    assert not [line for line in prose if len(line) > MAX_LINE_LENGTH]


def test_no_file_names_a_download_or_a_machine() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    names = [name for name in listed.stdout.split("\0") if name] or [str(page.relative_to(ROOT)) for page in PAGES]
    for name in names:
        path = ROOT / name
        try:
            text = path.read_text(encoding="utf-8")
        except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
            continue
        for match in (MACHINE.search(text), DOWNLOADS.search(text)):
            assert match is None, f"{name} names {match[0]!r}"


def dependencies() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    written = [*project["dependencies"], *(row for extra in project["optional-dependencies"].values() for row in extra)]
    return {re.split(r"[\[<>=;! ]", row)[0] for row in written}


def test_every_dependency_is_justified() -> None:
    text = (ROOT / "docs/contributing/dependencies.md").read_text(encoding="utf-8")
    rows = set(re.findall(r"^\| ([\w.\-]+) \| \S", text, re.MULTILINE)) - {"package"}
    assert rows == dependencies()


def test_every_dependency_is_pinned() -> None:
    def plain(name: str) -> str:
        return name.lower().replace("_", "-")

    pinned = {plain(line.partition("==")[0]) for line in (ROOT / "constraints.txt").read_text("utf-8").split()}
    assert {plain(name) for name in dependencies()} <= pinned


def _take(step: object, product: str, quantity: int) -> None: ...
def _charge(step: object, account: str, amount: str) -> None: ...
def _place(step: object, product: str, charge: str) -> None: ...


def test_the_saga_of_the_readme_is_valid() -> None:
    text = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(text) == 1
    actions = [Action("stock.take", _take, connection="shop"), Action("stock.put_back", _take, connection="shop")]
    actions += [
        Action("payments.charge", _charge, connection="bank"),
        Action("orders.place", _place, connection="shop"),
    ]
    actions += [Action("payments.refund", _charge, connection="bank")]
    definition, diagnostics = parse_text(
        text[0], "README.md", ProjectContext({action.name: action for action in actions})
    )
    assert definition is not None
    assert diagnostics == []
    assert len(text[0].splitlines()) <= 22


def test_the_readme_image_is_small() -> None:
    assert (ROOT / "docs/images/web-ui.png").stat().st_size < 300_000


def test_messages_name_pages_by_their_titles() -> None:
    """A user who has installed the packages has no folder docs/."""
    titles = {page.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ") for page in HAND_WRITTEN}
    sources = [
        path
        for room in ("sagas", "activities", "workers", "spark_steps", "cli")
        for path in (ROOT / room).rglob("*.py")
    ]
    texts = [
        node.value
        for path in sources
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "of the documentation" in node.value
    ]
    named = {title for text in texts for title in re.findall(r"'([^'\n]+)'(?= )", text)}
    assert named, "the messages no longer say `of the documentation`"
    assert named <= titles
    assert not [path for path in sources if re.search(r"help=.*docs/", path.read_text(encoding="utf-8"))]
