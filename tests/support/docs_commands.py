"""The commands that the pages name: lines of shell blocks, code that starts with a program, and the table of tiers."""

from __future__ import annotations

import argparse
import functools
import itertools
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
TIERS_PAGE = "contributing.md"
SHELLS = ("bash", "sh", "shell", "console")
PROGRAMS = {
    *("tox", "python", "python3", "pip", "uv", "pytest", "mutmut", "ruff", "mypy", "mkdocs", "airflow", "spark-submit"),
    *("docker", "kubectl", "helm", "git", "go", "npm", "apt-get", "curl", "rsync"),
}
"""What starts a command where code stands alone, in backticks. In a block of a shell every line is a command."""
BLOCK = re.compile(r"^ *```(\w+)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
ASSIGNED = re.compile(r"[A-Z_]+=\S+")


def lines_of(page: Path) -> Iterator[str]:
    """Every line of the shell blocks of a page, as it is typed; continued lines are one."""
    for language, block in BLOCK.findall(page.read_text(encoding="utf-8")):
        if language in SHELLS:
            yield from (line.strip() for line in block.replace("\\\n", " ").splitlines())


@functools.cache
def other_commands() -> dict[str, str]:
    """Every command but the verbs of ``streamstate``, without its comment, by the page that names it first."""
    found: dict[str, str] = {}
    for page in PAGES:
        for line in (*lines_of(page), *_in_text(page), *_in_table(page)):
            for command in _commands_in(line):
                found.setdefault(command, page.name)
    return found


def _commands_in(line: str) -> Iterator[str]:
    bare = re.sub(r"(^|\s+)#\s.*$", "", line)
    for command in filter(None, bare.split(" && ")):
        yield from re.findall(r"\$\(([^)]*)\)", command)
        if not command.startswith("streamstate "):
            yield command.strip().removeprefix(".venv/bin/")


def _in_text(page: Path) -> Iterator[str]:
    """Code in backticks that is a program with arguments, or a script of ``docs/`` by its path."""
    text = re.sub(r"```.*?```|``[^`]*``", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for code in re.findall(r"`([^`]+)`", text):
        words = [word for word in code.split() if not ASSIGNED.fullmatch(word)]
        if len(words) > 1 and Path(words[0]).name in PROGRAMS:
            yield code
        if re.fullmatch(r"docs/\w+\.py", code):
            yield f"python {code}"


def _in_table(page: Path) -> Iterator[str]:
    """The commands of the table of tiers: its second column, and what may follow them by the text of the fourth.

    The column leaves out ``tox``, and ``…`` stands for ``-e tests --``.
    """
    if page.name != TIERS_PAGE:
        return
    tiers = page.read_text(encoding="utf-8").partition("## Tiers")[2].partition("\n## ")[0]
    for row in re.findall(r"^\| .*\|$", tiers, re.MULTILINE):
        _, column, _, text, _ = row.strip("|").split("|")
        for code in re.findall(r"`(-e [^`]+|… [^`]+)`", column):
            command = f"tox {code}".replace("…", "-e tests --")
            yield command
            yield from (f"{command} {more}" for more in re.findall(r"`(-- [^`]+)`", text))


@dataclass(frozen=True)
class ToxCommand:
    """A command that starts tox.

    Attributes:
        environ: variables that are set for it.
        names: of its environments; empty: those of ``env_list``.
        words: what follows ``--``; None: nothing does.
    """

    environ: dict[str, str]
    names: tuple[str, ...]
    words: tuple[str, ...] | None


@functools.cache
def tox_commands() -> dict[str, ToxCommand]:
    """Those of the pages that start tox, by their text."""
    found = ((command, _tox_command(command)) for command in other_commands())
    return {command: tox for command, tox in found if tox is not None}


def _tox_command(command: str) -> ToxCommand | None:
    words = shlex.split(re.sub(r"\$\([^)]*\)", "", command))
    environ = dict(word.split("=", 1) for word in itertools.takewhile(ASSIGNED.fullmatch, words))
    program, *words = words[len(environ) :]
    if Path(program).name != "tox":
        return None
    own, behind, rest = _cut(words)
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("-e", default="")
    parser.add_argument("-p")
    parser.add_argument("-o", action="store_true")
    names = parser.parse_args(own).e.split(",")
    return ToxCommand(environ, tuple(filter(None, names)), tuple(rest) if behind else None)


def _cut(words: list[str]) -> tuple[list[str], bool, list[str]]:
    place = words.index("--") if "--" in words else len(words)
    return words[:place], "--" in words, words[place + 1 :]
