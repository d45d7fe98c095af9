"""What the docs state about the shell is what the shell does. The reference of its options is generated from them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from airflow_streamstate.cli.session import ShellSession
from support.docs_commands import lines_of
from support.shell import VERBS, command_of, parameters_of

ROOT = Path(__file__).resolve().parents[2]
SHELL = (ROOT / "docs" / "reference" / "shell.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
OF_USERS = [page for page in PAGES if page.parent.name not in ("project", "explanation")]
EXAMPLES = sorted({line for page in PAGES for line in lines_of(page) if line.startswith("streamstate ")})
SHARED = {"--home", "--work-dir", "--checkpoints", "--json", "--help", "--help-all", "--version"}
OF_OTHERS = {"--password", "--name", "--source", "--tier", "--quick", "--conn-id"}
"""Options of scripts, tox, the demo and `airflow streamstate` that pages of users name."""


def options_of_all_verbs() -> set[str]:
    """Every option of every verb."""
    of_all = (parameter for verb in VERBS for parameter in parameters_of(verb))
    return {name for parameter in of_all for name in (*parameter.opts, *parameter.secondary_opts)}


def test_the_reference_is_generated_from_the_shell() -> None:
    """One directive makes the page from click's own commands, so no option can be missing or out of date."""
    assert "::: mkdocs-click\n    :module: airflow_streamstate.cli.main\n    :command: cli\n" in SHELL


@pytest.mark.parametrize("page", OF_USERS, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_option_is_named_that_is_not_there(page: Path) -> None:
    """An option that a page names is one of a verb."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    named = {name for code in re.findall(r"`([^`]+)`", text) for name in re.findall(r"(?<![\w-])--[a-z][a-z-]+", code)}
    of_tox = {name for code in re.findall(r"`([^`]*tox[^`]*)`", text) for name in re.findall(r"--[a-z-]+", code)}
    assert named - options_of_all_verbs() - SHARED - OF_OTHERS - of_tox == set()


def test_the_options_of_all_verbs_are_named_once_for_all() -> None:
    """What holds for every verb is stated at the top."""
    assert {option for option in SHARED if f"`{option}" not in SHELL} == set()


@pytest.mark.parametrize("line", EXAMPLES)
def test_every_example_can_be_typed(line: str) -> None:
    """Each example of a page and of the README is a command line that the shell takes."""
    _, *words = shlex.split(line, comments=True)
    while words[0].startswith("--"):  # of every verb, and with a value
        words = words[2:]
    verb, *words = words
    if verb not in VERBS:
        verb, words = f"{verb} {words[0]}", words[1:]
    command_of(verb).make_context(verb, words, obj=ShellSession())
