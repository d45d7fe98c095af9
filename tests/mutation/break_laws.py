"""Break each law on purpose, and see that the test which holds it turns red: ``python tests/mutation/break_laws.py``.

``laws.toml`` beside it lists the breaks: for each law at least one text of the package that is exchanged for another
one, and the tests of the tier ``fast`` that must fail then. Each break is made alone, in a temporary copy of the
repository. What stands behind the command is a law's number or a part of a break's words: then only these are made.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parents[2]
BREAKS = Path(__file__).with_name("laws.toml")
NOT_COPIED = shutil.ignore_patterns(".git", ".tox", ".venv", "mutants", "__pycache__", ".*_cache", ".hypothesis")
SOME_TEST_FAILED = 1
"""Pytest's exit status; any other one says that the test did not run."""
TEST_SECONDS = 600


@dataclass(frozen=True)
class Break:
    """One deliberate defect.

    Attributes:
        law: the law that it breaks.
        words: what is broken, for people.
        file: of the package, from the root of the repository.
        old: the text of the file that is exchanged; it occurs there once.
        new: what stands there instead.
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


def main(wanted: Sequence[str]) -> int:
    """Make the breaks; the exit status is 0 where each was seen by each of its tests."""
    chosen = [one for one in breaks() if not wanted or any(_is_meant(one, word) for word in wanted)]
    if not chosen:
        print(f"no break is called {' or '.join(wanted)}")
        return 2
    with tempfile.TemporaryDirectory(prefix="laws-") as folder:
        copy = Path(folder) / "repository"
        shutil.copytree(ROOT, copy, ignore=NOT_COPIED)
        green = _not_red(copy, sorted({test for one in chosen for test in one.tests}), together=True)
        if not green:
            print("these tests fail without any break: nothing can be said")
            return 2
        unseen = [one for number, one in enumerate(chosen, 1) if not _is_seen(copy, one, f"{number}/{len(chosen)}")]
    print(f"{len(chosen) - len(unseen)} of {len(chosen)} breaks were seen by each of their tests")
    return 1 if unseen else 0


def _is_meant(one: Break, word: str) -> bool:
    return word == str(one.law) if word.isdigit() else word in one.words


def _is_seen(copy: Path, one: Break, progress: str) -> bool:
    path = copy / one.file
    whole = path.read_text(encoding="utf-8")
    if whole.count(one.old) != 1:
        raise SystemExit(f"the text that this break exchanges is not there once: law {one.law}, {one.words}")
    try:
        path.write_text(whole.replace(one.old, one.new), encoding="utf-8")
        unseen = _not_red(copy, one.tests)
    finally:
        path.write_text(whole, encoding="utf-8")
    print(f"[{progress}] law {one.law}, {one.words}: {'NOT SEEN' if unseen else 'seen'}", flush=True)
    for test in unseen:
        print(f"    stayed green: {test}", flush=True)
    return not unseen


def _not_red(copy: Path, tests: Sequence[str], *, together: bool = False) -> list[str]:
    """The tests that do not fail; all of them or none where they are run together."""
    runs = [list(tests)] if together else [[test] for test in tests]
    left = []
    for run in runs:
        status, output = _run(copy, run)
        if status not in (0, SOME_TEST_FAILED):
            raise SystemExit(f"pytest ended with exit status {status} over {', '.join(run)}:\n{output}")
        if status == 0:
            left += run
    return left


def _run(copy: Path, tests: Sequence[str]) -> tuple[int, str]:
    # Not the wheel that tox tests, but the copy: and no bytecode of the file as it was before the break.
    environ = {name: value for name, value in os.environ.items() if name not in ("TOX_ENV_NAME", "TOX_ENV_DIR")}
    environ |= {"PYTHONPATH": os.pathsep.join([str(copy), str(copy / "tests")]), "PYTHONDONTWRITEBYTECODE": "1"}
    environ.pop("PYTHONPYCACHEPREFIX", None)
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--tier", "fast", *tests]
    done = subprocess.run(
        command, cwd=copy, env=environ, capture_output=True, text=True, timeout=TEST_SECONDS, check=False
    )
    return done.returncode, done.stdout[-4_000:] + done.stderr[-2_000:]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
