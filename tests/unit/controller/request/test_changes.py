"""A change of what a stream runs."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from airflow_streamstate.controller.request.requests import change_request
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.terms.version import Artifact, LauncherChoice
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
    before = stage.spec().version
    assert change_request(STREAM).applied_to(before, stage.store) == before


def test_what_is_named_is_new_and_pinned(stage: Stage) -> None:
    """The script by its digest (Law 15), settings key by key, lists as a whole."""
    deployed(stage)
    before = stage.spec().version
    script, other = stage.script("print(2)\n", "v2.py"), stage.script("y = 1\n", "other.py")
    jar = str(stage.script("classes", "x.jar"))
    request = change_request(
        STREAM, script, arguments=(), conf={"spark.b": "3", "spark.c": "4"}, environment={"X": "1"}, py_files=(other,),
        packages=(), master="local[4]", jars=(jar, "s3a://jars/y.jar"),
    )  # fmt: skip
    after = request.applied_to(before, stage.store)
    digest = hashlib.sha256(b"print(2)\n").hexdigest()
    assert (after.application.name, after.application.sha256) == ("v2.py", digest)
    assert stage.store.get(layout.artifact_key(STREAM, digest, "v2.py")).body == b"print(2)\n"  # type: ignore[union-attr]
    assert (after.arguments, after.packages, after.master) == ((), (), "local[4]")
    assert after.conf == {"spark.a": "1", "spark.b": "3", "spark.c": "4"}
    assert after.environment == {"TZ": "UTC", "X": "1"}
    assert [artifact.name for artifact in after.py_files] == ["other.py"]
    pinned = Artifact("x.jar", hashlib.sha256(b"classes").hexdigest())
    assert after.jars == (pinned, "s3a://jars/y.jar")
    assert stage.store.get(layout.artifact_key(STREAM, pinned.sha256, "x.jar")).body == b"classes"  # type: ignore[union-attr]
    assert after.code_digest != before.code_digest
    same = {"application", "arguments", "conf", "environment", "py_files", "packages", "jars", "master", "script_path"}
    assert replace(after, **{name: getattr(before, name) for name in same}) == before


def test_a_connection_takes_the_place_of_a_master_and_back(stage: Stage) -> None:
    """One of the two decides where it runs."""
    deployed(stage)
    by_connection = change_request(STREAM, spark_conn_id="spark_default").applied_to(stage.spec().version, stage.store)
    assert (by_connection.master, by_connection.spark_conn_id) == ("", "spark_default")
    back = change_request(STREAM, master="local[1]").applied_to(by_connection, stage.store)
    assert (back.master, back.spark_conn_id) == ("local[1]", None)


def test_a_change_is_told_from_another_by_its_digest(stage: Stage) -> None:
    """By the bytes of its files, not by their names alone."""
    script = stage.script("print(2)\n", "v2.py")
    first = change_request(STREAM, script, conf={"spark.a": "1"}).digest
    assert change_request(STREAM, script, conf={"spark.a": "1"}).digest == first
    assert change_request(STREAM, script, conf={"spark.a": "2"}).digest != first
    script.write_text("print(3)\n")
    assert change_request(STREAM, script, conf={"spark.a": "1"}).digest != first


@pytest.mark.parametrize(
    "bad",
    [
        {"conf": {"spark.hadoop.fs.s3a.secret.key": "plain"}},
        {"environment": {"1X": "y"}},
        {"allow_new_queries": ("",)},
        {"arguments": ("--password", "plain")},
    ],
)
def test_what_a_deploy_would_refuse_is_refused(bad: dict[str, object]) -> None:
    """By the same rules, before anything is started."""
    with pytest.raises(InvalidRequestError):
        change_request(STREAM, **bad)  # type: ignore[arg-type]


def test_files_that_are_not_there_or_of_one_name_are_refused(stage: Stage) -> None:
    """They are read when the change is requested."""
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        change_request(STREAM, stage.folder / "missing.py")
    twice = (stage.script("x = 1\n", "lib.py"), stage.script("x = 2\n", "lib.py"))
    with pytest.raises(InvalidRequestError, match="same name"):
        change_request(STREAM, py_files=twice)


def test_what_cannot_be_a_script_is_no_change(stage: Stage) -> None:
    """Refused as at a deploy; nothing is pinned of it."""
    deployed(stage)
    before = keys(stage)
    with pytest.raises(InvalidRequestError, match="has no statement"):
        change_request(STREAM, stage.script("# later\n", "empty.py"))
    assert keys(stage) == before


def keys(stage: Stage) -> list[str]:
    """What the home holds."""
    return sorted(info.key for info in stage.store.list_objects(""))


def test_another_script_does_not_keep_the_name_of_the_version_before(stage: Stage) -> None:
    """Settings alone do; a name that is given counts."""
    stage.deploy("print(1)\n", version_label="v1")
    before, script = stage.spec().version, stage.script("print(2)\n", "v2.py")
    labels = {
        label: change_request(STREAM, script, version_label=label).applied_to(before, stage.store).version_label
        for label in (None, "v2")
    }
    assert labels == {None: "", "v2": "v2"}
    assert change_request(STREAM, conf={"spark.a": "3"}).applied_to(before, stage.store).version_label == "v1"


ON_KUBERNETES = LauncherChoice("kubernetes", {"namespace": "streams", "image": "spark:1"}, "kubernetes_default")


def test_a_move_to_another_launcher_takes_its_master(stage: Stage) -> None:
    """What belonged to the machine before does not: master, Spark connection, working folder."""
    deployed(stage)
    before = stage.spec().version
    assert before.launcher is None
    assert before.working_folder
    moved = change_request(STREAM, launcher=ON_KUBERNETES).applied_to(before, stage.store)
    assert (moved.launcher, moved.master, moved.working_folder) == (ON_KUBERNETES, "", "")
    assert moved.code_digest != before.code_digest
    named = change_request(STREAM, launcher=ON_KUBERNETES, master="local[1]").applied_to(before, stage.store)
    assert named.master == "local[1]"
    back = change_request(STREAM, launcher=LauncherChoice("local")).applied_to(moved, stage.store)
    assert (back.launcher, back.master) == (None, "local[*]")


def test_options_of_the_same_launcher_are_merged(stage: Stage) -> None:
    """One is changed, one removed by an empty text; with another launcher none stays."""
    deployed(stage)
    before = replace(stage.spec().version, launcher=ON_KUBERNETES, master="")
    for name in ("", "kubernetes"):
        asked = LauncherChoice(name, {"image": "spark:2", "namespace": ""})
        after = change_request(STREAM, launcher=asked).applied_to(before, stage.store)
        assert after.launcher == LauncherChoice("kubernetes", {"image": "spark:2"}, "kubernetes_default")
    other = LauncherChoice("yarn", {"queue": "streams"})
    assert change_request(STREAM, launcher=other).applied_to(before, stage.store).launcher == other
    with pytest.raises(InvalidRequestError, match="no launcher that has any"):
        change_request(STREAM, launcher=LauncherChoice("local", {"image": "x"})).applied_to(before, stage.store)


def test_a_launcher_without_a_name_is_no_request_to_deploy(stage: Stage) -> None:
    """A new stream has no launcher whose options could change."""
    with pytest.raises(InvalidRequestError, match="no launcher that has any"):
        stage.request(launcher=LauncherChoice("", {"image": "x"}))
    with pytest.raises(InvalidRequestError, match="plain JSON"):
        stage.request(launcher=LauncherChoice("kubernetes", {"image": object()}))
    with pytest.raises(InvalidRequestError, match="Give one of them"):
        stage.request(launcher=ON_KUBERNETES, spark_conn_id="spark_default")
    with pytest.raises(InvalidRequestError, match="on this machine need no Airflow connection"):
        stage.request(launcher=LauncherChoice("local", conn_id="kubernetes_default"))
    assert stage.request(launcher=LauncherChoice("local")).version.launcher is None


def test_a_jar_is_known_by_its_bytes(stage: Stage) -> None:
    """Other bytes under the same path are a change; the same bytes elsewhere are none, nor is a URI. (Law 15)"""
    jar = stage.script("classes", "x.jar")
    stage.deploy("print(1)\n", jars=(str(jar), "s3a://jars/y.jar"))
    before = stage.spec().version
    (stage.folder / "elsewhere").mkdir()
    copy = stage.script("classes", "elsewhere/x.jar")
    first = change_request(STREAM, jars=(str(copy), "s3a://jars/y.jar"))
    assert first.applied_to(before, stage.store) == before
    copy.write_text("other classes")
    second = change_request(STREAM, jars=(str(copy), "s3a://jars/y.jar"))
    assert second.applied_to(before, stage.store).code_digest != before.code_digest
    assert second.digest != first.digest


def test_a_python_environment_is_pinned_in_place_of_its_path(stage: Stage) -> None:
    """A URI stays an option; another option leaves the environment as it is, and an empty text removes it. (Law 15)"""
    deployed(stage)
    before = stage.spec().version
    archive = stage.script("python", "env.tar.gz")
    asked = LauncherChoice("yarn", {"queue": "a", "python_env": str(archive)})
    first = change_request(STREAM, launcher=asked)
    pinned = Artifact("env.tar.gz", hashlib.sha256(b"python").hexdigest())
    on_yarn = first.applied_to(before, stage.store)
    assert on_yarn.launcher == LauncherChoice("yarn", {"queue": "a"}, python_env=pinned)
    assert stage.store.get(layout.artifact_key(STREAM, pinned.sha256, "env.tar.gz")) is not None
    archive.write_text("other")
    second = change_request(STREAM, launcher=asked)
    assert second.digest != first.digest
    assert second.applied_to(before, stage.store).code_digest != on_yarn.code_digest
    for options, after in (
        ({"queue": "b"}, LauncherChoice("yarn", {"queue": "b"}, python_env=pinned)),
        ({"python_env": ""}, LauncherChoice("yarn", {"queue": "a"})),
        ({"python_env": "hdfs:///e.zip"}, LauncherChoice("yarn", {"queue": "a", "python_env": "hdfs:///e.zip"})),
    ):
        merged = change_request(STREAM, launcher=LauncherChoice("", options))
        assert merged.applied_to(on_yarn, stage.store).launcher == after
    elsewhere = merged.applied_to(on_yarn, stage.store)
    archive.write_text("python")
    assert first.applied_to(elsewhere, stage.store).launcher == on_yarn.launcher
