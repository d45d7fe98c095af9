"""The environments of tox.ini as tox itself reads them, without making one."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
POSARGS = "WORDS-AFTER-THE-DASHES"
OF_TOX_ALONE = ("TOX_*", "PYSPARK_*", "PYTHONPYCACHEPREFIX", "PYTHONHASHSEED", "AIRFLOW_HOME")
"""Variables of an environment that was not made: this interpreter has its place."""
BIN = Path(sys.executable).parent


def tox_ini() -> configparser.ConfigParser:
    """Its sections, with nothing replaced."""
    return _parsed((ROOT / "tox.ini").read_text(encoding="utf-8"))


def _parsed(text: str) -> configparser.ConfigParser:
    read = configparser.ConfigParser(interpolation=None)
    read.optionxform = str  # type: ignore[assignment,method-assign]
    read.read_string(text)
    return read


@dataclass(frozen=True)
class ToxEnvironment:
    """What tox makes of a section of tox.ini.

    Attributes:
        bare: command lines with nothing after ``--``.
        with_words: the same with ``POSARGS`` after it.
        variables: that are set.
        deps: requirements, and files of requirements.
    """

    bare: list[str]
    with_words: list[str]
    variables: dict[str, str]
    deps: list[str]

    def commands(self, words: Sequence[str] | None) -> list[list[str]]:
        """The words of each command line.

        Args:
            words: what follows ``--``; None: nothing does.
        """
        lines = self.bare if words is None else [one.replace(POSARGS, shlex.join(words)) for one in self.with_words]
        return [shlex.split(line) for line in lines]

    def fetched(self, program: str) -> list[str]:
        """What starts a program that only this environment has: uv fetches it; [] where it is here, too."""
        if shutil.which(program, path=f"{BIN}{os.pathsep}{os.environ['PATH']}") is not None:
            return []
        texts = [Path(one.removeprefix("-r ")).read_text() for one in self.deps if one.startswith("-r ")]
        found = "\n".join([*self.deps, *texts])
        requirement = re.search(rf"^{program}\b.*", found, re.MULTILINE)
        assert requirement is not None, f"no requirement brings {program}"
        return uv_run(requirement[0])


def uv_run(requirement: str, *more: str) -> list[str]:
    """The words that start a program of the registry, which this environment has not; the program's come next."""
    beside = [word for one in more for word in ("--with", one)]
    return [sys.executable, "-m", "uv", "tool", "run", "-q", "--from", requirement, *beside]


def started(words: Sequence[str], variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """What a command did, as a reader starts it: in the repository, with no folder of tests on the path."""
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and Path(path).name != "tests"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TOX_", "PYTEST_"))}
    environ = {**kept, "PATH": f"{BIN}{os.pathsep}{kept['PATH']}", "PYTHONPATH": os.pathsep.join(paths), **variables}
    return subprocess.run(words, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)


def tox_environments(names: Iterable[str], folder: Path) -> dict[str, ToxEnvironment]:
    """By their names.

    Args:
        folder: where tox would make them.
    """
    ini = tox_ini()["tox"]
    tox = [*uv_run(f"tox>={ini['min_version']}", ini["requires"]), "tox", "--workdir", str(folder), "config"]
    asked = [*tox, "-e", ",".join(sorted(names)), "-k", "commands", "set_env", "deps"]
    bare, with_words = (_parsed(_output(words)) for words in (asked, [*asked, "--", POSARGS]))
    return {
        name.removeprefix("testenv:"): ToxEnvironment(
            _lines(bare[name]["commands"]),
            _lines(with_words[name]["commands"]),
            dict(_pairs(bare[name]["set_env"])),
            _lines(bare[name]["deps"]),
        )
        for name in bare.sections()
    }


def _output(words: Sequence[str]) -> str:
    done = started(words, {})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]


def _pairs(text: str) -> list[tuple[str, str]]:
    pairs = [line.partition("=") for line in _lines(text)]
    return [(name, value) for name, _, value in pairs if not any(fnmatch(name, one) for one in OF_TOX_ALONE)]
