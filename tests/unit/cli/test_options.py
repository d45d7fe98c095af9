"""Options of several verbs."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from airflow_streamstate.cli.options import Seconds
from airflow_streamstate.cli.session import ShellSession
from support.shell import VERBS, Desk, parameters_of, shell


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "-1", "0", "0.05", "1e9", "", "ten", "5m"])
def test_what_is_no_number_of_seconds_is_no_deadline(text: str) -> None:
    """A wait always has a deadline: not a number, for ever, and before now are none (Law 6)."""
    with pytest.raises(click.BadParameter):
        Seconds(0.1).convert(text, None, None)


@pytest.mark.parametrize(("text", "seconds"), [("0.1", 0.1), ("120", 120.0), ("1e3", 1000.0), ("31536000", 31536000.0)])
def test_seconds_are_read_as_written(text: str, seconds: float) -> None:
    """Whole, with a point, or with an exponent."""
    assert Seconds(0.1).convert(text, None, None) == seconds


@pytest.mark.parametrize("verb", VERBS)
def test_a_heading_of_the_help_is_a_word_of_people(verb: str) -> None:
    """No name of a class."""
    headings = {str(getattr(parameter, "heading", "")) for parameter in parameters_of(verb)}
    assert [heading for heading in headings if heading != heading.capitalize()] == []


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_takes_home_and_form_after_it(verb: str) -> None:
    """--home, --checkpoints, --work-dir and --json are known after each verb, and not only before."""
    names = {name for parameter in parameters_of(verb) for name in parameter.opts}
    assert {"--home", "--checkpoints", "--work-dir", "--json"} <= names


def test_the_home_is_said_before_the_verb_after_it_or_by_the_environment(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last value on the command line wins, and the environment counts only where none is given."""
    desk.stream().deploy()
    home = str(desk.home)
    assert [row["stream_id"] for row in shell("--json", "list").json["streams"]] == ["flights"]
    monkeypatch.setenv("STREAMSTATE_HOME", str(desk.base / "other"))
    assert shell("list", "--json").error["context"]["home"] == str(desk.base / "other")
    for words in (
        ("--home", home, "--json", "list"),
        ("--json", "list", "--home", home),
        ("--home", str(desk.base / "third"), "list", "--home", home, "--json"),
        (f"--home={home}", "list", "--json"),
    ):
        assert [row["stream_id"] for row in shell(*words).json["streams"]] == ["flights"], words
    monkeypatch.delenv("STREAMSTATE_HOME")
    assert shell("--home", home, "list").status == 0


@pytest.mark.parametrize("value", [None, ""])
def test_without_a_home_it_says_how_to_give_one(desk: Desk, monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    """No home, or an empty one, is a mistake in the request (exit status 2)."""
    monkeypatch.delenv("STREAMSTATE_HOME")
    if value is not None:
        monkeypatch.setenv("STREAMSTATE_HOME", value)
    answer = shell("list", "--json")
    assert answer.status == 2
    assert answer.error["message"] == "no home was given"
    assert "STREAMSTATE_HOME" in answer.error["next_step"]


def test_checkpoints_may_lie_elsewhere(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """--checkpoints, or STREAMSTATE_CHECKPOINTS, names the second place."""
    said = shell("home", "doctor", "--json", "--checkpoints", desk.base / "disk").json["checks"][-1]
    assert said["found"].endswith(f"checkpoints are in {desk.base / 'disk'}")
    monkeypatch.setenv("STREAMSTATE_CHECKPOINTS", str(desk.base / "disk2"))
    assert shell("home", "doctor", "--json").json["checks"][-1]["found"].endswith(f"{desk.base / 'disk2'}")


def test_the_work_folder_may_lie_elsewhere() -> None:
    """--work-dir, or STREAMSTATE_WORK_DIR, names the folder of drivers' code and logs; a URI is none."""
    said = ShellSession.of({"STREAMSTATE_HOME": "/h", "STREAMSTATE_WORK_DIR": "/srv/launches"}, as_json=False)
    assert said.home().launch_path("a") == Path("/srv/launches/a")
    answer = shell("list", "--home", "/h", "--work-dir", "s3://bucket/x", "--json")
    assert (answer.status, answer.error["context"]["work_dir"]) == (2, "s3://bucket/x")


def test_a_configuration_without_a_value_is_told_without_showing_it(desk: Desk) -> None:
    """What was meant to be K=V may be the secret itself, so the error does not repeat it."""
    answer = shell("deploy", "flights", "--app", "job.py", "--conf", "hunter2-secret", "--json", "--async")
    assert answer.status == 2
    assert "KEY=VALUE" in answer.error["message"]
    assert "hunter2" not in answer.out + answer.err
