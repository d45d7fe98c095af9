"""A change of what a stream runs."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from airflow_streamstate.controller.request.changes import ChangeRequest, changed
from airflow_streamstate.controller.request.resolved_request import resolve_request
from airflow_streamstate.controller.request.version import Version
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.records import Artifact, LauncherChoice
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
    jar = str(stage.script("classes", "x.jar"))
    request = ChangeRequest(
        STREAM, script, arguments=(), conf={"spark.b": "3", "spark.c": "4"}, environment={"X": "1"}, py_files=(other,),
        packages=(), master="local[4]", jars=(jar, "s3a://jars/y.jar"),
    )  # fmt: skip
    after = changed(before, request, stage.store)
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


ON_KUBERNETES = LauncherChoice("kubernetes", {"namespace": "streams", "image": "spark:1"}, "kubernetes_default")


def test_a_move_to_another_launcher_takes_its_master(stage: Stage) -> None:
    """What belonged to the machine before does not: master, Spark connection, working folder."""
    deployed(stage)
    before = Version.of(stage.spec())
    assert before.launcher is None
    assert before.working_folder
    moved = changed(before, ChangeRequest(STREAM, launcher=ON_KUBERNETES), stage.store)
    assert (moved.launcher, moved.master, moved.working_folder) == (ON_KUBERNETES, "", "")
    assert moved.code_digest != before.code_digest
    named = changed(before, ChangeRequest(STREAM, launcher=ON_KUBERNETES, master="local[1]"), stage.store)
    assert named.master == "local[1]"
    back = changed(moved, ChangeRequest(STREAM, launcher=LauncherChoice("local")), stage.store)
    assert (back.launcher, back.master) == (None, "local[*]")


def test_options_of_the_same_launcher_are_merged(stage: Stage) -> None:
    """One is changed, one removed by an empty text; with another launcher none stays."""
    deployed(stage)
    before = replace(Version.of(stage.spec()), launcher=ON_KUBERNETES, master="")
    for name in ("", "kubernetes"):
        asked = LauncherChoice(name, {"image": "spark:2", "namespace": ""})
        after = changed(before, ChangeRequest(STREAM, launcher=asked), stage.store)
        assert after.launcher == LauncherChoice("kubernetes", {"image": "spark:2"}, "kubernetes_default")
    other = LauncherChoice("yarn", {"queue": "streams"})
    assert changed(before, ChangeRequest(STREAM, launcher=other), stage.store).launcher == other
    with pytest.raises(InvalidRequestError, match="no launcher that has any"):
        changed(before, ChangeRequest(STREAM, launcher=LauncherChoice("local", {"image": "x"})), stage.store)


def test_a_launcher_without_a_name_is_no_request_to_deploy(stage: Stage) -> None:
    """A new stream has no launcher whose options could change."""
    with pytest.raises(InvalidRequestError, match="no launcher that has any"):
        resolve_request(stage.request(launcher=LauncherChoice("", {"image": "x"})))
    with pytest.raises(InvalidRequestError, match="plain JSON"):
        stage.request(launcher=LauncherChoice("kubernetes", {"image": object()}))
    with pytest.raises(InvalidRequestError, match="Give one of them"):
        stage.request(launcher=ON_KUBERNETES, spark_conn_id="spark_default")
    with pytest.raises(InvalidRequestError, match="on this machine need no Airflow connection"):
        resolve_request(stage.request(launcher=LauncherChoice("local", conn_id="kubernetes_default")))
    assert resolve_request(stage.request(launcher=LauncherChoice("local"))).version.launcher is None


def test_a_jar_is_known_by_its_bytes(stage: Stage) -> None:
    """Other bytes under the same path are a change; the same bytes elsewhere are none, nor is a URI. (Law 15)"""
    jar = stage.script("classes", "x.jar")
    stage.deploy("print(1)\n", jars=(str(jar), "s3a://jars/y.jar"))
    before = Version.of(stage.spec())
    (stage.folder / "elsewhere").mkdir()
    copy = stage.script("classes", "elsewhere/x.jar")
    request = ChangeRequest(STREAM, jars=(str(copy), "s3a://jars/y.jar"))
    assert changed(before, request, stage.store) == before
    first = request.digest
    copy.write_text("other classes")
    assert changed(before, request, stage.store).code_digest != before.code_digest
    assert request.digest != first


def test_the_jar_of_an_earlier_release_stays_the_path_that_it_is(stage: Stage) -> None:
    """A change that names no jars keeps what the record has; one that names them pins them."""
    jar = stage.script("classes", "x.jar")
    stage.deploy("print(1)\n")
    before = replace(Version.of(stage.spec()), jars=(str(jar),)).digested()
    assert changed(before, ChangeRequest(STREAM), stage.store) == before
    assert changed(before, ChangeRequest(STREAM, jars=(str(jar),)), stage.store).jars == (
        Artifact("x.jar", hashlib.sha256(b"classes").hexdigest()),
    )


def test_a_python_environment_is_pinned_in_place_of_its_path(stage: Stage) -> None:
    """A URI stays an option; another option leaves the environment as it is, and an empty text removes it. (Law 15)"""
    deployed(stage)
    before = Version.of(stage.spec())
    archive = stage.script("python", "env.tar.gz")
    request = ChangeRequest(STREAM, launcher=LauncherChoice("yarn", {"queue": "a", "python_env": str(archive)}))
    pinned = Artifact("env.tar.gz", hashlib.sha256(b"python").hexdigest())
    on_yarn, first = changed(before, request, stage.store), request.digest
    assert on_yarn.launcher == LauncherChoice("yarn", {"queue": "a"}, python_env=pinned)
    assert stage.store.get(layout.artifact_key(STREAM, pinned.sha256, "env.tar.gz")) is not None
    archive.write_text("other")
    assert (changed(before, request, stage.store).code_digest, request.digest) != (on_yarn.code_digest, first)
    for options, after in (
        ({"queue": "b"}, LauncherChoice("yarn", {"queue": "b"}, python_env=pinned)),
        ({"python_env": ""}, LauncherChoice("yarn", {"queue": "a"})),
        ({"python_env": "hdfs:///e.zip"}, LauncherChoice("yarn", {"queue": "a", "python_env": "hdfs:///e.zip"})),
    ):
        merged = ChangeRequest(STREAM, launcher=LauncherChoice("", options))
        assert changed(on_yarn, merged, stage.store).launcher == after
