"""docs/shell.md says what the shell does."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from airflow_streamstate.cli.main import SECTIONS, cli
from airflow_streamstate.cli.session import Session

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "shell.md").read_text()
COMMANDS = [command for commands in SECTIONS.values() for command in commands]
EXAMPLES = [
    line
    for page in (PAGE, (ROOT / "README.md").read_text())
    for block in re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    for line in block.splitlines()
    if line.startswith("streamstate ")
]
SHARED = {"--home", "--launches", "--checkpoints", "--json", "--help"}


def section_of(verb: str) -> str:
    """What the page says of a verb."""
    found = re.search(rf"^## `{verb}`\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert found, f"no section `{verb}`"
    return found.group(1)


def test_the_page_has_a_section_for_each_verb_and_no_other() -> None:
    """No verb is undocumented, and none is documented that is not there."""
    assert re.findall(r"^## `([\w-]+)`$", PAGE, re.MULTILINE) == [command.name for command in COMMANDS]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: str(command.name))
def test_each_option_is_named_where_its_verb_is(command: click.Command) -> None:
    """Every option that click knows is in the section of its verb, with an example beside it."""
    text = section_of(str(command.name))
    options = {name for parameter in command.params for name in parameter.opts if name.startswith("--")}
    assert {option for option in options - SHARED if f"`{option}" not in text} == set()
    assert f"streamstate {command.name}" in text


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: str(command.name))
def test_no_option_is_named_that_is_not_there(command: click.Command) -> None:
    """Whatever the section of a verb names as its option is one."""
    named = set(re.findall(r"^\| `(--[a-z-]+)", section_of(str(command.name)), re.MULTILINE))
    options = {name for parameter in command.params for name in parameter.opts}
    assert named - options == set()


def test_the_options_of_all_verbs_are_named_once_for_all() -> None:
    """What holds for every verb is said at the top."""
    top = PAGE.partition("## `deploy`")[0]
    assert {option for option in [*SHARED, "--version"] if f"`{option}" not in top} == set()


@pytest.mark.parametrize("line", EXAMPLES)
def test_every_example_can_be_typed(line: str) -> None:
    """Each example of the page and of the README is a command line that the shell takes."""
    _, verb, *words = shlex.split(line, comments=True)
    cli.commands[verb].make_context(verb, words, obj=Session())
