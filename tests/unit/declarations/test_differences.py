"""What differs between two versions, by the type of each value, and what of it a file has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_streamstate.declarations.diff import FieldDifference, differences
from airflow_streamstate.declarations.export import version_fields
from airflow_streamstate.declarations.stream_file import changes_of, places
from airflow_streamstate.protocol.settings import AgentSettings
from airflow_streamstate.protocol.terms.declaration import terms_of
from airflow_streamstate.protocol.terms.version import Artifact, LauncherChoice, Version

ONE, OTHER = "1" * 64, "2" * 64
VERSION = Version(Artifact("job.py", ONE))


def found(**changed: Any) -> list[FieldDifference]:
    return [*differences(VERSION, replace(VERSION, **changed))]


@pytest.mark.parametrize(
    ("changed", "difference"),
    [
        ({"application": Artifact("job.py", OTHER)}, ("application", "job.py 111111111111", "job.py 222222222222")),
        ({"py_files": (Artifact("lib.zip", OTHER),)}, ("py_files.lib.zip", "", "222222222222")),
        ({"jars": (Artifact("a.jar", ONE),)}, ("jars.a.jar", "", "111111111111")),
        ({"jars": ("s3a://b/a.jar",)}, ("jars", "", "s3a://b/a.jar")),
        ({"arguments": ("--day", "a b")}, ("arguments", "", "--day 'a b'")),
        ({"conf": {"spark.x": "1"}}, ("conf.spark.x", "", "1")),
        ({"conf": {"spark.x": ""}}, ("conf.spark.x", "", '""')),
        ({"environment": {"TOKEN": "hunter2"}}, ("environment.TOKEN", "", "… (another value)")),
        ({"attaches": True}, ("attaches", "False", "True")),
        ({"spark_conn_id": "spark"}, ("spark_conn_id", "", "spark")),
        ({"snapshots": "none"}, ("snapshots.place", "", "none")),
        ({"settings": AgentSettings(heartbeat_seconds=5)}, ("settings.heartbeat_seconds", "10.0", "5")),
        ({"settings": AgentSettings(snapshot_every_seconds=60.0)}, ("snapshots.every_seconds", "", "60.0")),
        ({"launcher": LauncherChoice("yarn")}, ("launcher.name", "", "yarn")),
        ({"version_label": "v1"}, ("version_label", "", "v1")),
    ],
    ids=lambda one: next(iter(one)) if isinstance(one, dict) else None,
)
def test_each_type_of_a_value_has_its_difference(changed: dict[str, Any], difference: tuple[str, str, str]) -> None:
    """By the name that a file has for it."""
    assert [(one.name, one.before, one.after) for one in found(**changed)] == [difference]


def test_words_of_a_command_line_are_compared_one_by_one() -> None:
    """Two arguments are not one with a blank between them."""
    before, after = (replace(VERSION, arguments=words) for words in (("a b",), ("a", "b")))
    assert differences(before, after) == (FieldDifference("arguments", "'a b'", "a b"),)


def test_an_environment_of_python_is_compared_by_its_content() -> None:
    """It is pinned with the launcher, and no option of its own."""
    before, after = (
        replace(VERSION, launcher=LauncherChoice("yarn", {"queue": "a"}, python_env=Artifact("env.tar.gz", digest)))
        for digest in (ONE, OTHER)
    )
    (difference,) = differences(before, after)
    assert difference.name == "launcher.python_env"
    assert changes_of(difference.name) == "code"


def test_secrets_are_in_no_difference() -> None:
    """Also one that is quoted between other words."""
    before = replace(VERSION, arguments=("--password", "it's 1"), conf={"spark.db.password": "hunter2"})
    (arguments, conf) = differences(before, replace(VERSION, arguments=("--password", "x y z")))
    assert "it" not in arguments.before
    assert "x y z" not in arguments.after
    assert "hunter2" not in conf.before


def test_a_change_of_each_term_says_what_it_makes_of_the_stream() -> None:
    """Else `apply` would not know what to do; of a version no change is one of the stream alone."""
    assert {changes_of(one.name_on("files")) for one in terms_of(Version)} == {"code", "version", "label"}
    of_stream = {".".join(place) for place, one in places().items() if one.changes == "stream" and len(place) == 1}
    assert of_stream == {"restart", "alerts", "owner", "labels", "retention"}


def test_an_export_has_what_differs_from_the_defaults(tmp_path: Path) -> None:
    """Files below the folder of the code; a secret is left out, and named."""
    version = replace(
        VERSION,
        modules=(Artifact("lib/a.py", ONE),),
        files=(Artifact("a.csv", ONE),),
        arguments=("--token=hunter2", "x"),
        conf={"spark.a": "1", "spark.db.password": "hunter2"},
        settings=AgentSettings(snapshot_every_seconds=60.0, keep_running=True),
        launcher=LauncherChoice("yarn", {"queue": "a"}, python_env=Artifact("env.tar.gz", ONE)),
    )
    fields, notes = version_fields(version, str(tmp_path), tmp_path / "s")
    assert fields == {
        "application": "s/job.py",
        "arguments": ["--token=env://TOKEN", "x"],
        "conf": {"spark.a": "1"},
        "files": ["s/files/a.csv"],
        "modules": ["lib/a.py"],
        "launcher": {"name": "yarn", "options": {"queue": "a", "python_env": f"{tmp_path}/s/python_env/env.tar.gz"}},
        "settings": {"keep_running": True},
        "snapshots": {"every_seconds": 60.0},
    }
    assert [one.partition(" is a secret")[0] for one in notes] == ["one of arguments", "conf.spark.db.password"]
