"""A change of what a stream runs."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from airflow_streamstate.controller.request.changes import ChangeRequest, changed
from airflow_streamstate.controller.request.version import Version
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol import layout
from support.sim_stage import STREAM, Stage


def deployed(stage: Stage) -> None:
    stage.deploy(
        "print(1)\n",
        arguments=("--in", "/in"),
        conf={"spark.a": "1", "spark.b": "2"},
        environment={"TZ": "UTC"},
        packages=("g:a:1",),
        py_files=(stage.script("x = 1\n", "lib.py"),),
        master="local[2]",
    )


def test_what_is_not_named_stays_as_it_is(stage: Stage) -> None:
    """Nothing but the record's ids and times would differ, not even the digest of what runs."""
    deployed(stage)
    before = Version.of(stage.spec())
    assert changed(before, ChangeRequest(STREAM), stage.store) == before


def test_what_is_named_is_new_and_pinned(stage: Stage) -> None:
    """The script by its digest (Law 15), settings key by key, lists as a whole."""
    deployed(stage)
    before = Version.of(stage.spec())
    script, other = stage.script("print(2)\n", "v2.py"), stage.script("y = 1\n", "other.py")
    request = ChangeRequest(
        STREAM, script, arguments=(), conf={"spark.b": "3", "spark.c": "4"}, environment={"X": "1"}, py_files=(other,),
        packages=(), master="local[4]", jars=("x.jar",),
    )  # fmt: skip
    after = changed(before, request, stage.store)
    digest = hashlib.sha256(b"print(2)\n").hexdigest()
    assert (after.application.name, after.application.sha256) == ("v2.py", digest)
    assert stage.store.get(layout.artifact_key(STREAM, digest, "v2.py")).body == b"print(2)\n"  # type: ignore[union-attr]
    assert (after.arguments, after.packages, after.master) == ((), (), "local[4]")
    assert after.conf == {"spark.a": "1", "spark.b": "3", "spark.c": "4"}
    assert after.environment == {"TZ": "UTC", "X": "1"}
    assert [artifact.name for artifact in after.py_files] == ["other.py"]
    assert after.jars[0].endswith("/x.jar")
    assert after.code_digest != before.code_digest
    same = {"application", "arguments", "conf", "environment", "py_files", "packages", "jars", "master", "code_digest"}
    same |= {"script_path"}
    assert replace(after, **{name: getattr(before, name) for name in same}) == before


def test_a_connection_takes_the_place_of_a_master_and_back(stage: Stage) -> None:
    """One of the two says where it runs."""
    deployed(stage)
    by_connection = changed(Version.of(stage.spec()), ChangeRequest(STREAM, spark_conn_id="spark_default"), stage.store)
    assert (by_connection.master, by_connection.spark_conn_id) == ("", "spark_default")
    back = changed(by_connection, ChangeRequest(STREAM, master="local[1]"), stage.store)
    assert (back.master, back.spark_conn_id) == ("local[1]", None)


def test_a_change_is_told_from_another_by_its_digest(stage: Stage) -> None:
    """By the bytes of its files, not by their names alone."""
    script = stage.script("print(2)\n", "v2.py")
    request = ChangeRequest(STREAM, script, conf={"spark.a": "1"})
    first = request.digest
    assert ChangeRequest(STREAM, script, conf={"spark.a": "1"}).digest == first
    assert ChangeRequest(STREAM, script, conf={"spark.a": "2"}).digest != first
    script.write_text("print(3)\n")
    assert request.digest != first


@pytest.mark.parametrize(
    "bad",
    [
        {"conf": {"spark.hadoop.fs.s3a.secret.key": "plain"}},
        {"environment": {"1X": "y"}},
        {"fresh_queries": ("",)},
        {"arguments": ("--password", "plain")},
    ],
)
def test_what_a_deploy_would_refuse_is_refused(bad: dict[str, object]) -> None:
    """By the same rules, before anything is begun."""
    with pytest.raises(InvalidRequestError):
        ChangeRequest(STREAM, **bad)  # type: ignore[arg-type]


def test_files_that_are_not_there_or_of_one_name_are_refused(stage: Stage) -> None:
    """Nothing is pinned of them."""
    deployed(stage)
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        changed(Version.of(stage.spec()), ChangeRequest(STREAM, stage.folder / "missing.py"), stage.store)
    twice = (stage.script("x = 1\n", "lib.py"), stage.script("x = 2\n", "lib.py"))
    with pytest.raises(InvalidRequestError, match="same name"):
        changed(Version.of(stage.spec()), ChangeRequest(STREAM, py_files=twice), stage.store)


def test_what_cannot_be_a_script_is_no_change(stage: Stage) -> None:
    """Refused as at a deploy; nothing is pinned of it."""
    deployed(stage)
    before = keys(stage)
    request = ChangeRequest(STREAM, stage.script("# later\n", "empty.py"))
    with pytest.raises(InvalidRequestError, match="has no statement"):
        changed(Version.of(stage.spec()), request, stage.store)
    with pytest.raises(InvalidRequestError, match="has no statement"):
        assert request.digest
    assert keys(stage) == before


def keys(stage: Stage) -> list[str]:
    """What the home holds."""
    return sorted(info.key for info in stage.store.list_objects(""))


def test_another_script_does_not_keep_the_name_of_the_version_before(stage: Stage) -> None:
    """Settings alone do; a name that is given counts."""
    stage.deploy("print(1)\n", version_label="v1")
    before, script = Version.of(stage.spec()), stage.script("print(2)\n", "v2.py")
    labels = {
        request.version_label or "none": changed(before, request, stage.store).version_label
        for request in (ChangeRequest(STREAM, script), ChangeRequest(STREAM, script, version_label="v2"))
    }
    assert labels == {"none": "", "v2": "v2"}
    assert changed(before, ChangeRequest(STREAM, conf={"spark.a": "3"}), stage.store).version_label == "v1"
