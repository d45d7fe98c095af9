"""Break each law on purpose, and see that the test which holds it turns red: ``python tests/mutation/break_laws.py``.

``laws.toml`` next to it lists the breaks: for each law at least one text of the package that is exchanged for another
one, and the tests of the tier ``fast`` that must fail then. Each break is made alone, in a temporary copy of the
repository. What follows the command is a law's number or a part of a break's words: then only these are made.
``--sample 8`` makes eight of them, chosen by ``--seed``; without it the seed is the commit of the checkout.
``--dry-run`` makes none, and names those that would be made.

Each test runs in a process that is forked from this one: pytest and the libraries of others are imported once, the
package only there. It is from the copy, or the run ends.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest
import tomllib

ROOT = Path(__file__).resolve().parents[2]
BREAKS = Path(__file__).with_name("laws.toml")
NOT_COPIED = shutil.ignore_patterns(".git", ".tox", ".venv", "mutants", "__pycache__", ".*_cache", ".hypothesis")
PACKAGE = "airflow_streamstate"
WARM = ("click", "hypothesis", "pydantic", "pygments", "rich.console", "typing_extensions", "yaml", "asyncio")
"""What most tests import. Pytest loads no plugin that was imported before, so it is given its plugins one by one."""
PLUGINS = ("pytest_timeout", "pytest_rerunfailures")
NO_TEST_FAILED = 0
SOME_TEST_FAILED = 1
"""Pytest's exit status; any other one means that the test did not run."""
NOT_OF_THE_COPY = 71
"""Exit status of a process whose package is not the copy's."""
TEST_SECONDS = 300


@dataclass(frozen=True)
class Break:
    """One deliberate defect.

    Attributes:
        law: the law that it breaks.
        words: what is broken, human-readable.
        file: of the package, from the root of the repository.
        old: the text of the file that is exchanged; it occurs there once.
        new: what replaces it.
        tests: that must fail then, each by itself, as ``tests/…/test_x.py::test_y``.
    """

    law: int
    words: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def breaks() -> list[Break]:
    """All of them, by law."""
    found = tomllib.loads(BREAKS.read_text(encoding="utf-8"))["break"]
    return sorted((Break(**{**one, "tests": tuple(one["tests"])}) for one in found), key=lambda one: one.law)


def sample(found: Sequence[Break], count: int, seed: str) -> list[Break]:
    """``count`` of them, the same ones for the same seed; all if there are no more."""
    return sorted(random.Random(seed).sample(found, min(count, len(found))), key=found.index)


def main(arguments: Sequence[str]) -> int:
    """Make the breaks; the exit status is 0 where each was seen by each of its tests."""
    given = _given(arguments)
    chosen = [one for one in breaks() if not given.wanted or any(_is_meant(one, word) for word in given.wanted)]
    if not chosen:
        print(f"no break is called {' or '.join(given.wanted)}")
        return 2
    if given.sample is not None:
        seed = _commit() if given.seed is None else given.seed
        chosen = sample(chosen, given.sample, seed)
        print(f"{len(chosen)} breaks; once more the same ones: --sample {given.sample} --seed {seed}", flush=True)
    if given.dry_run:
        print(*(f"law {one.law}, {one.words}" for one in chosen), sep="\n")
        return 0
    with tempfile.TemporaryDirectory(prefix="laws-") as folder:
        runs = Runs(Path(folder).resolve())
        red = [test for test in sorted({test for one in chosen for test in one.tests}) if not runs.is_green(test)]
        if red:
            print("these tests fail without any break, so that nothing can be said:", *red, sep="\n    ")
            return 2
        unseen = [one for number, one in enumerate(chosen, 1) if not _is_seen(runs, one, f"{number}/{len(chosen)}")]
    print(f"{len(chosen) - len(unseen)} of {len(chosen)} breaks were seen by each of their tests")
    return 1 if unseen else 0


def _given(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Break each law on purpose, one break at a time.")
    parser.add_argument("wanted", nargs="*", help="a law's number, or a part of a break's words; all without it")
    parser.add_argument("--sample", type=int, metavar="N", help="make N of them")
    parser.add_argument("--seed", help="which ones; without it the commit of the checkout")
    parser.add_argument("--dry-run", action="store_true", help="make none, and name those that would be made")
    return parser.parse_args(arguments)


def _is_meant(one: Break, word: str) -> bool:
    return word == str(one.law) if word.isdigit() else word in one.words


def _commit() -> str:
    """Of the checkout; 0 where git does not know it."""
    with suppress(OSError, subprocess.CalledProcessError):
        asked = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    return "0"


class Runs:
    """Runs single tests over a copy of the repository.

    Args:
        folder: where the copy is made.
    """

    def __init__(self, folder: Path) -> None:
        self.copy = folder / "repository"
        shutil.copytree(ROOT, self.copy, ignore=NOT_COPIED)
        self._output = folder / "output"
        for name in WARM:
            if importlib.util.find_spec(name.partition(".")[0]) is not None:
                importlib.import_module(name)
        if PACKAGE in sys.modules:
            raise SystemExit("the package was imported before there was a copy of it")
        own = {str(path) for path in (ROOT, ROOT / "tests", Path(__file__).parent)}
        self._path = [str(self.copy), str(self.copy / "tests"), *(path for path in sys.path if path not in own | {""})]
        # Not the wheel that tox tests, but the copy; its bytecode is kept in this folder alone.
        for name in ("TOX_ENV_NAME", "TOX_ENV_DIR", "PYTHONPYCACHEPREFIX"):
            os.environ.pop(name, None)
        os.environ["PYTHONPATH"] = os.pathsep.join(self._path[:2])
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        if sys.pycache_prefix is not None:
            sys.pycache_prefix = str(folder / "bytecode")
        os.chdir(self.copy)
        signal.signal(signal.SIGALRM, _too_long)
        signal.signal(signal.SIGTERM, _ended)  # a child has its own session, and is ended by this process alone

    def is_green(self, test: str) -> bool:
        """Whether a test passes; what it imports is compiled for later runs."""
        sys.dont_write_bytecode = False
        return self._run(test) == NO_TEST_FAILED

    def stays_green(self, one: Break) -> list[str]:
        """Those tests of a break that do not fail under it."""
        path = self.copy / one.file
        whole = path.read_text(encoding="utf-8")
        if whole.count(one.old) != 1:
            raise SystemExit(f"the text that this break exchanges is not there once: law {one.law}, {one.words}")
        # No bytecode of the file as it was before the break, and none of the broken one afterwards.
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)
        sys.dont_write_bytecode = True
        try:
            path.write_text(whole.replace(one.old, one.new), encoding="utf-8")
            return [test for test in one.tests if self._run(test) == NO_TEST_FAILED]
        finally:
            path.write_text(whole, encoding="utf-8")

    def _run(self, test: str) -> int:
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            self._be_pytest(test)
        try:
            signal.alarm(TEST_SECONDS)
            os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        except TimeoutError as late:
            raise SystemExit(f"this test did not end within {TEST_SECONDS} seconds: {test}") from late
        finally:
            signal.alarm(0)
            # With what the test has started: its processes are in its session.
            with suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if ended not in (NO_TEST_FAILED, SOME_TEST_FAILED):
            said = self._output.read_text(encoding="utf-8", errors="replace")[-4_000:]
            raise SystemExit(f"pytest ended with exit status {ended} over {test}:\n{said}")
        return ended

    def _be_pytest(self, test: str) -> NoReturn:
        """In the child: the whole life of it."""
        status = NOT_OF_THE_COPY
        try:
            os.setsid()
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            output = os.open(self._output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(output, 1)
            os.dup2(output, 2)
            sys.path[:] = self._path
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            plugins = [word for name in PLUGINS for word in ("-p", name)]
            ended = int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", *plugins, "--tier", "fast", test]))
            found = str(getattr(sys.modules.get(PACKAGE), "__file__", None))
            if found == str(self.copy / PACKAGE / "__init__.py"):
                status = ended
            else:
                print(f"the package that was tested is not the copy's: {found}")
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)


def _too_long(*_: object) -> NoReturn:
    raise TimeoutError


def _ended(*_: object) -> NoReturn:
    raise SystemExit("ended by SIGTERM")


def _is_seen(runs: Runs, one: Break, progress: str) -> bool:
    unseen = runs.stays_green(one)
    print(f"[{progress}] law {one.law}, {one.words}: {'NOT SEEN' if unseen else 'seen'}", flush=True)
    for test in unseen:
        print(f"    stayed green: {test}", flush=True)
    return not unseen


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
