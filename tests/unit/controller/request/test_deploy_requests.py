"""The digests of requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_streamstate.controller.request.requests import DeployRequest
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.settings import AgentSettings
from airflow_streamstate.protocol.terms.version import Artifact, LauncherChoice
from support.sim_stage import STREAM, Stage


def test_equal_requests_have_equal_digests_wherever_the_files_lie(stage: Stage, tmp_path: Path) -> None:
    """Code is known by its bytes, not by its path. (Law 15)"""
    first = stage.request("print(1)\n")
    (tmp_path / "elsewhere").mkdir()
    copy = tmp_path / "elsewhere" / "job.py"
    copy.write_text("print(1)\n")
    second = stage.request("print(1)\n", application=copy)
    assert (first.version.code_digest, first.digest) == (second.version.code_digest, second.digest)


def test_what_has_no_order_is_the_same_in_any_order(stage: Stage) -> None:
    """A task that gives a set of names has another order in its next process, and repeats its request. (Law 2)"""
    for name in ("allow_new_queries", "accept_lost_input", "accept_repeated_input", "mirrors"):
        first, second = (stage.request(**{name: each}) for each in (("memory://a", "b"), ("b", "memory://a")))
        assert first.digest == second.digest, name
    assert stage.request(arguments=("a", "b")).digest != stage.request(arguments=("b", "a")).digest


@pytest.mark.parametrize(
    "changes",
    [
        {"arguments": ("x",)},
        {"conf": {"spark.a": "b"}},
        {"master": "local[2]"},
        {"packages": ("g:a:1",)},
        {"jars": ("s3://b/x.jar",)},
        {"spark_conn_id": "c"},
        {"text": "print(2)\n"},
    ],
)
def test_other_code_is_another_request(stage: Stage, changes: dict) -> None:
    """Whatever changes what runs changes both digests. (Law 2)"""
    base, changed = stage.request(text="print(1)\n"), stage.request(**changes)
    assert base.version.code_digest != changed.version.code_digest
    assert base.digest != changed.digest


def test_another_start_is_another_request_for_the_same_code(stage: Stage) -> None:
    """How it starts is part of the request, and not of the code; mere permissions are part of neither. (Law 2)"""
    base, fresh = stage.request(), stage.request(start="fresh")
    assert base.version.code_digest == fresh.version.code_digest
    assert base.digest != fresh.digest
    allowed = stage.request(assume_dead=True, reason="other", request_id="r")
    assert allowed.digest == base.digest


def test_the_master_of_a_connection_is_left_to_it(stage: Stage) -> None:
    """Without a master it is local, or what the connection sets."""
    assert stage.request().version.master == "local[*]"
    assert stage.request(spark_conn_id="c").version.master == ""


def test_a_file_that_changes_while_it_is_deployed_is_noticed(stage: Stage) -> None:
    """What is pinned is what the digest covers. (Law 15)"""
    resolved = stage.request("print(1)\n")
    stage.script("print(2)\n")
    with pytest.raises(InvalidRequestError, match="was changed"):
        resolved.pin(stage.store)


def test_every_field_of_a_request_is_in_its_digest(stage: Stage) -> None:
    """Another value is another request; what runs has its own digest. (Law 2)"""
    asked = [
        stage.request("print(1)\n", **changes)
        for changes in (
            {},
            {"accept_lost_input": ("counts",)},
            {"environment": {"TZ": "UTC"}},
            {"environment": {"TZ": "UTC", "revive": "1"}},
            {"settings": AgentSettings()},
            {"settings": AgentSettings(snapshot_every_seconds=60)},
            {"max_snapshot_age_seconds": 60.0, "snapshot_id": "d-0001-live-000001"},
            {"accept_hazards": True},
            {"on_query_failure": "fail"},
            {"owner": "ada"},
            {"working_folder": stage.folder},
        )
    ]
    assert len({one.digest for one in asked}) == len(asked)
    codes = {one.version.code_digest for one in asked}
    assert codes == {one.version.code_digest for one in (asked[0], *asked[2:4])}
    assert len(codes) == 3


@pytest.mark.parametrize("words", [("--password", "hunter2"), ("--url=http://ann:hunter2@db/x",)])
def test_a_script_that_attaches_has_no_secret_on_its_command_line(stage: Stage, words: tuple[str, ...]) -> None:
    """Others can read it there, so that no consent to record literal secrets allows it; nor does a later change."""
    with pytest.raises(InvalidRequestError, match="on the command line") as raised:
        stage.request("attach()\n", attaches=True, arguments=words, allow_literal_secrets=True)
    assert "hunter2" not in str(raised.value)
    stage.request("attach()\n", arguments=words, allow_literal_secrets=True)


def test_a_script_that_attaches_says_so_and_has_a_name_that_spark_submit_takes(stage: Stage) -> None:
    """Spark takes any other name for a jar."""
    for name, text, fact in (
        ("job.py", "print(1)\n", "never calls attach"),
        ("job", "attach()\n", "name ends in .py"),
    ):
        with pytest.raises(InvalidRequestError, match=fact):
            stage.request(application=stage.script(text, name), attaches=True)
    assert stage.request("attach()\n", attaches=True).version.attaches


def test_jars_and_a_python_environment_are_pinned_by_their_bytes(stage: Stage, tmp_path: Path) -> None:
    """The same bytes are the same code, wherever they are; other bytes under the same path are another. (Law 15)"""
    jar, archive = stage.script("classes", "x.jar"), stage.script("python", "env.zip")
    (tmp_path / "elsewhere").mkdir()
    copy = tmp_path / "elsewhere" / "x.jar"
    copy.write_text("classes")

    def asked(jar: Path) -> DeployRequest:
        launcher = LauncherChoice("yarn", {"python_env": str(archive)})
        return stage.request(jars=(str(jar), "s3a://b/y.jar"), launcher=launcher)

    first = asked(jar)
    assert asked(copy).digest == first.digest
    first.pin(stage.store)
    launcher = first.version.launcher
    assert launcher is not None
    for artifact in (first.version.jars[0], launcher.python_env):
        assert isinstance(artifact, Artifact)
        assert stage.store.get(layout.artifact_key(STREAM, artifact.sha256, artifact.name)) is not None
    assert first.version.jars[1:] == ("s3a://b/y.jar",)
    for path in (jar, archive):
        path.write_text("other")
        changed = asked(jar)
        assert (changed.digest, changed.version.code_digest) != (first.digest, first.version.code_digest)
        with pytest.raises(InvalidRequestError, match="was changed"):
            first.pin(stage.store)


def test_a_driver_that_works_is_never_silent_for_long_enough_to_count_as_lost(stage: Stage) -> None:
    """A cluster's report of an end is believed after lost_after_seconds without a heartbeat (1a.8)."""
    stage.request(settings=AgentSettings(heartbeat_seconds=5.0, lost_after_seconds=10.0))
    with pytest.raises(InvalidRequestError, match="between two of its heartbeats") as told:
        stage.request(settings=AgentSettings(lost_after_seconds=10.0))
    assert told.value.next_step == "Give a lost_after_seconds of at least 2 times heartbeat_seconds."
