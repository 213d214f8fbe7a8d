"""Revisions of the git repository in which a project lies, checked out into temporary folders."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from sagas.errors import SagaError, UsageError
from sagas.text.bounded_files import short_path
from sagas.text.printable import printable_line
from sagas.text.shortening import shorten

_TIMEOUT = 120
"""Seconds for one command of git."""

_SHALLOW = "a shallow clone lacks older commits: git fetch --unshallow"


@dataclass(frozen=True, slots=True)
class RevisionRange:
    """Two revisions as git writes them. ``new`` is None for the files as they are now.

    ``since_fork``: `OLD...NEW` compares with the commit at which the two went apart, as a pull request does.
    """

    old: str
    new: str | None
    since_fork: bool

    def __str__(self) -> str:
        return f"{self.old}{'...' if self.since_fork else '..'}{self.new or ''}"


def parse_range(text: str) -> RevisionRange | None:
    """The revisions of `OLD..NEW`, `OLD..` or `OLD...NEW`; None if it is no such range."""
    for dots in ("...", ".."):
        old, separator, new = text.partition(dots)
        if separator:
            return RevisionRange(old, new or None, since_fork=dots == "...") if old else None
    return None


class Repository:
    """The git repository of a project folder.

    Raises UsageError: git is not installed, the folder is in no repository, or git refuses to read it.
    """

    def __init__(self, project: Path) -> None:
        self.root = Path(_git(project, "rev-parse", "--show-toplevel").removesuffix("\n")).resolve()

    def commit(self, revision: str) -> str:
        """The hash of a commit. Raises UsageError if the revision names none."""
        if revision.startswith("-"):
            raise UsageError(f"{_quoted(revision)} is not a git revision")
        answer = _git(self.root, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}", may_be_nothing=True)
        if not answer:
            raise UsageError(f"there is no revision {_quoted(revision)} in {_quoted(self.root)}", help=_SHALLOW)
        return answer.strip()

    def fork_point(self, revision: str, other: str) -> str:
        """The last commit that both revisions contain. Raises UsageError if there is none."""
        answer = _git(self.root, "merge-base", self.commit(revision), self.commit(other), may_be_nothing=True)
        if not answer:
            raise UsageError(f"{_quoted(revision)} and {_quoted(other)} have no commit in common", help=_SHALLOW)
        return answer.strip()

    def earlier_path(self, file: Path, old: str, new: str | None) -> Path | None:
        """The path of this file of the revision ``new`` (None: of now) in the commit ``old``: its own, or in the folder
        from which most files have moved to its folder since; None if it has none.
        """
        if self._has(old, file):
            return file
        words = ["diff", "--name-status", "-z", "--find-renames", "--diff-filter=R", old, *([new] if new else []), "--"]
        names = _git(self.root, *words).split("\0")[:-1]
        folders: Counter[Path] = Counter()
        for before, now in zip(map(Path, names[1::3]), map(Path, names[2::3]), strict=True):
            inner = now.relative_to(file.parent).parts if now.is_relative_to(file.parent) else ()
            if inner and before.parts[-len(inner) :] == inner:
                folders[Path(*before.parts[: -len(inner)])] += 1
        candidates = (folder / file.name for folder, _ in folders.most_common())
        return next((candidate for candidate in candidates if self._has(old, candidate)), None)

    def _has(self, commit: str, file: Path) -> bool:
        return _git(self.root, "ls-tree", "--name-only", "-z", commit, "--", f":(literal){file.as_posix()}") != ""

    def require_no_submodule(self, commit: str, folder: Path) -> None:
        """Raises UsageError if a commit has only a reference to another repository where the ``folder`` is."""
        path = Path(os.path.relpath(folder, self.root))
        for ancestor in (path, *path.parents[:-1]):
            if _git(self.root, "ls-tree", commit, "--", f":(literal){ancestor}").startswith("160000 "):
                raise UsageError(
                    f"{_quoted(ancestor)} is a submodule, whose files are not in the revisions of {_quoted(self.root)}",
                    help="compare two files: saga diff OLD NEW",
                )

    @contextmanager
    def checked_out(self, commit: str) -> Iterator[Path]:
        """A temporary folder with the files of a commit. The index and the files of the repository stay as they are."""
        with TemporaryDirectory(prefix="saga-revision-") as temporary:
            folder = Path(temporary).resolve() / "files"
            folder.mkdir()
            index = {"GIT_INDEX_FILE": str(folder.parent / "index")}
            _git(self.root, "read-tree", commit, variables=index)
            _git(self.root, "checkout-index", "--all", f"--prefix={folder}/", variables=index)
            yield folder


def _git(folder: Path, *words: str, may_be_nothing: bool = False, variables: Mapping[str, str] | None = None) -> str:
    """The output of a command of git. ``may_be_nothing``: it may fail without a word, which says that there is none."""
    command = ["git", "-C", str(folder), *words]
    environment = {**os.environ, **(variables or {})}
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=_TIMEOUT, env=environment)
    except FileNotFoundError:
        raise UsageError("revisions are compared with git, which is not installed") from None
    except subprocess.TimeoutExpired:
        raise SagaError(f"git {words[0]} has not ended after {_TIMEOUT} s") from None
    if done.returncode == 0:
        return os.fsdecode(done.stdout)
    if may_be_nothing and not done.stderr:
        return ""
    reason = done.stderr.decode(errors="replace").strip().partition("\n")[0]
    raise UsageError(f"git {words[0]} failed: {printable_line(shorten(reason, 300))}")


def _quoted(name: str | Path) -> str:
    return printable_line(short_path(name))
