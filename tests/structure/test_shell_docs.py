"""docs/shell.md says what the shell does."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from airflow_streamstate.cli.session import Session
from support.shell import VERBS, command_of, parameters_of

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "shell.md").read_text()
EXAMPLES = [
    line
    for page in (PAGE, (ROOT / "README.md").read_text())
    for block in re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    for line in block.splitlines()
    if line.startswith("streamstate ")
]
SHARED = {"--home", "--work-dir", "--checkpoints", "--json", "--help", "--help-all"}


def section_of(verb: str) -> str:
    """What the page says of a verb."""
    found = re.search(rf"^## `{verb}`\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert found, f"no section `{verb}`"
    return found.group(1)


def test_the_page_has_a_section_for_each_verb_and_no_other() -> None:
    """No verb is undocumented, and none is documented that is not there."""
    assert sorted(re.findall(r"^## `([\w -]+)`$", PAGE, re.MULTILINE)) == sorted(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_each_option_is_named_where_its_verb_is(verb: str) -> None:
    """Every option that click knows is in the section of its verb, with an example beside it."""
    text = section_of(verb)
    options = {name for parameter in parameters_of(verb) for name in parameter.opts if name.startswith("--")}
    assert {option for option in options - SHARED if f"`{option}" not in text} == set()
    assert f"streamstate {verb}" in text


@pytest.mark.parametrize("verb", VERBS)
def test_no_option_is_named_that_is_not_there(verb: str) -> None:
    """Whatever the section of a verb names as its option is one."""
    named = set(re.findall(r"^\| `(--[a-z-]+)", section_of(verb), re.MULTILINE))
    options = {name for parameter in parameters_of(verb) for name in parameter.opts}
    assert named - options == set()


def test_the_options_of_all_verbs_are_named_once_for_all() -> None:
    """What holds for every verb is said at the top."""
    top = PAGE.partition("## `deploy`")[0]
    assert {option for option in [*SHARED, "--version"] if f"`{option}" not in top} == set()


@pytest.mark.parametrize("line", EXAMPLES)
def test_every_example_can_be_typed(line: str) -> None:
    """Each example of the page and of the README is a command line that the shell takes."""
    _, verb, *words = shlex.split(line, comments=True)
    if verb not in VERBS:
        verb, words = f"{verb} {words[0]}", words[1:]
    command_of(verb).make_context(verb, words, obj=Session())
