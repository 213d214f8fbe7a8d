"""Compiles the tests and what they import once, before xdist starts processes that would all do so at the same time."""

from __future__ import annotations

import compileall
import contextlib
import io
import multiprocessing
import os
import sys
from pathlib import Path

import pytest
from _pytest.assertion import rewrite

_PLAIN = ("sagas", "activities", "spark_steps", "workers", "cli", "definitions")


def compile_files(config: pytest.Config) -> None:
    """Write the compiled files of the project, on all cores; those that are up to date stay."""
    if sys.dont_write_bytecode:
        return
    root = config.rootpath
    files = [file for folder in (*_PLAIN, "tests") for file in sorted((root / folder).rglob("*.py"))]
    count = os.cpu_count() or 1
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=_compile, args=(files[n::count], config)) for n in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


def _compile(files: list[Path], config: pytest.Config) -> None:
    """A file with mistakes is left to its import, which reports them."""
    for file in files:
        if file.name == "conftest.py" or file.name.startswith("test_"):
            with contextlib.suppress(SyntaxError):
                _rewrite(file, config)
        else:
            with contextlib.redirect_stdout(io.StringIO()):
                compileall.compile_file(file, quiet=2)


def _rewrite(file: Path, config: pytest.Config) -> None:
    """Rewrite and compile like pytest's import hook, which executes the file, too."""
    folder = rewrite.get_cache_dir(file)
    compiled = folder / (file.name[:-3] + rewrite.PYC_TAIL)
    if rewrite._read_pyc(file, compiled) is None and rewrite.try_makedirs(folder):
        source, code = rewrite._rewrite_test(file, config)
        rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, source, compiled)
