"""What a driver is launched with, and what the home records of it."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.deploy.skips import SkipOrder
from airflow_streamstate.controller.drivers.driver_launch import Drivers
from airflow_streamstate.controller.drivers.driver_places import DriverPlaces
from airflow_streamstate.controller.home import Home, HomeConfig
from airflow_streamstate.controller.observe.views import DeploymentView
from airflow_streamstate.controller.request.requests import deploy_request
from airflow_streamstate.controller.scratch.readings import ReadingRequest, reader_spec
from airflow_streamstate.driver.config import DriverConfig
from airflow_streamstate.errors import DataError, InvalidRequestError, OutcomeUnknownError, UnavailableError
from airflow_streamstate.launch.interface import LaunchRequest
from airflow_streamstate.launch.submit_options import own_disk_note
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import Failed
from airflow_streamstate.protocol.scratch import Reading, ScratchRun
from airflow_streamstate.protocol.signing import SigningKeys
from airflow_streamstate.protocol.terms.order import SkipTerms
from airflow_streamstate.protocol.terms.version import LauncherChoice
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.options import (
    AZURE_KEY_VARIABLES,
    AZURE_SAS_VARIABLES,
    AzureOptions,
    GCSOptions,
    S3Options,
    S3Role,
    StoreOptions,
)
from support.checkpoints import plan_batch
from support.fake_clock import FakeClock
from support.s3_server import ACCESS_KEY, BUCKET, SECRET_KEY, options_for
from support.sim_stage import ANY_SECRET, STREAM, Stage, StillLauncher


class Connection:
    """What an Airflow Spark connection contains."""

    master = "spark://127.0.0.1:7077"
    spark_submit = ("spark-submit", "--master", "spark://127.0.0.1:7077")
    environment = {"HADOOP_CONF_DIR": "/conf"}  # noqa: RUF012


def test_the_driver_is_told_where_its_home_lies(stage: Stage) -> None:
    """The runner's configuration reports which attempt of what it is, and nothing that spec.json contains."""
    stage.deploy(arguments=("--x", "1"), conf={"spark.a": "b"}, packages=("g:a:1",))
    request = stage.launcher.requests["d-0001-a0001"]
    assert request.driver_config == {
        "home_uri": stage.store.uri,
        "checkpoints_uri": stage.store.uri,
        "stream_id": STREAM,
        "deployment_id": "d-0001",
        "attempt": 1,
        "script_path": str(stage.folder / "job.py"),
        **dict.fromkeys(StoreOptions().settings()),  # nothing was set
        "secrets": [],
    }
    assert (request.arguments, request.master, request.packages) == (("--x", "1"), "local[*]", ("g:a:1",))
    assert request.conf == {"spark.a": "b"}
    assert request.folder == str(stage.folder / layout.launch_folder(STREAM, "d-0001", "d-0001-a0001"))


def test_files_travel_under_their_names_and_for_their_owner_alone(stage: Stage) -> None:
    """A script finds its modules and files (Law 15); other users find nothing: arguments may be secret."""
    module, data = stage.script("x = 1\n", "lib.py"), stage.script("1,2\n", "data.csv")
    stage.deploy(py_files=(module,), files=(data,))
    request = stage.launcher.requests["d-0001-a0001"]
    assert [Path(path).name for path in (*request.py_files, *request.files)] == ["lib.py", "data.csv"]
    assert Path(request.files[0]).read_text() == "1,2\n"
    assert stat.S_IMODE(Path(request.folder).stat().st_mode) == 0o700


def test_a_folder_that_cannot_be_made_is_one_sentence(stage: Stage) -> None:
    """Something is in its way."""
    (stage.folder / STREAM).write_text("")
    with pytest.raises(InvalidRequestError, match="the folder of a launch cannot be used"):
        stage.deploy()


@pytest.mark.parametrize("verb", ["resume", "drain", "skip", "deploy"])
@pytest.mark.parametrize("kind", ["application", "py_files"])
def test_a_pinned_file_that_was_altered_is_not_run(stage: Stage, verb: str, kind: str) -> None:
    """Other bytes than were pinned are never run, and no number is taken for them: with the original bytes the same
    request continues. (Laws 2 and 15)"""
    script, module = "print('v1')\n", stage.script("x = 1\n", "lib.py")
    stage.deploy(script, py_files=(module,))
    stage.come_to_life(queries=("counts",))
    plan_batch(stage.run_batches(3), 4)
    stage.say(Failed, error="ValueError: bad row")
    stage.end()
    acts: dict[str, Callable[[], object]] = {
        "resume": lambda: stage.controller.resume(STREAM, request_id="r-1"),
        "drain": lambda: stage.controller.order("drain", STREAM, request_id="r-1"),
        "skip": lambda: stage.controller.skips.skip(SkipOrder(STREAM, SkipTerms(4), "a bad row"), "r-1"),
        "deploy": lambda: stage.deploy(script, py_files=(module,), request_id="r-1"),
    }
    artifact = stage.spec().version.application if kind == "application" else stage.spec().version.py_files[0]
    key = layout.artifact_key(STREAM, artifact.sha256, artifact.name)
    original, before = stage.store.get(key), stage.control.need_register().value
    assert original is not None
    stage.store.put(key, b"other")
    with pytest.raises(DataError, match="missing or altered"):
        acts[verb]()
    assert stage.control.need_register().value == before
    assert stage.control.journal("d-0001").commands() == []
    assert list(stage.launcher.requests) == ["d-0001-a0001"]
    stage.store.put(key, original.body)
    acts[verb]()
    assert list(stage.launcher.requests)[1:] == ["d-0002-a0001" if verb == "deploy" else "d-0001-a0002"]


def launched_from(tmp_path: Path, config: HomeConfig, **request: Any) -> tuple[LaunchRequest, DeploymentView]:
    """What a first deploy in this home launches, and what it reports."""
    clock = FakeClock()
    launcher = StillLauncher(clock)
    (tmp_path / "job.py").write_text("print(1)\n")
    view = Controller(Home(config, clock), launcher, clock).deploy(
        deploy_request(stream_id=STREAM, application=tmp_path / "job.py", **request)
    )
    (launched,) = launcher.requests.values()
    return launched, view


NO_AZURE = dict.fromkeys((*AZURE_KEY_VARIABLES, *AZURE_SAS_VARIABLES), "")
"""What would count before the connection's own credentials."""


@pytest.mark.parametrize(
    ("options", "environment", "config"),
    [
        (
            StoreOptions(S3Options("r", "http://127.0.0.1:1", access_key_id="AK", secret_access_key="SECRET")),
            {"AWS_ACCESS_KEY_ID": "AK", "AWS_SECRET_ACCESS_KEY": "SECRET"},
            {"s3_region": "r", "s3_endpoint_url": "http://127.0.0.1:1"},
        ),
        (
            StoreOptions(S3Options(profile_name="streams", role=S3Role("arn:r", "x-1", "name", 1800))),
            {"AWS_PROFILE": "streams"},
            {
                "s3_profile_name": "streams",
                "s3_role_arn": "arn:r",
                "s3_role_external_id": "x-1",
                "s3_role_session_name": "name",
                "s3_role_duration_seconds": 1800,
            },
        ),
        (
            StoreOptions(gcs=GCSOptions("http://127.0.0.1:1", service_account_key="SECRET")),
            {"STREAMSTATE_GCS_SERVICE_ACCOUNT_KEY": "SECRET"},
            {"gcs_endpoint_url": "http://127.0.0.1:1"},
        ),
        (
            StoreOptions(gcs=GCSOptions(key_path="/etc/key.json")),
            {"GOOGLE_APPLICATION_CREDENTIALS": "/etc/key.json", "STREAMSTATE_GCS_SERVICE_ACCOUNT_KEY": ""},
            {},
        ),
        (
            StoreOptions(azure=AzureOptions("acc", "SECRET", "http://127.0.0.1:1")),
            {**NO_AZURE, "AZURE_STORAGE_ACCOUNT_KEY": "SECRET"},
            {"azure_account_name": "acc", "azure_endpoint_url": "http://127.0.0.1:1"},
        ),
        (
            StoreOptions(azure=AzureOptions("acc", sas_token="SECRET")),
            {**NO_AZURE, "AZURE_STORAGE_SAS_TOKEN": "SECRET"},
            {"azure_account_name": "acc"},
        ),
        (
            StoreOptions(azure=AzureOptions("acc", tenant_id="t", client_id="c", client_secret="SECRET")),
            {**NO_AZURE, "AZURE_TENANT_ID": "t", "AZURE_CLIENT_ID": "c", "AZURE_CLIENT_SECRET": "SECRET"},
            {},
        ),
    ],
    ids=["s3", "role", "gcs", "gcs-file", "azure", "signature", "principal"],
)
def test_credentials_travel_by_environment(
    tmp_path: Path, options: StoreOptions, environment: dict[str, str], config: dict[str, object]
) -> None:
    """Secrets of a home are in no file and on no command line; the driver opens its stores with the rest."""
    request, _ = launched_from(tmp_path, HomeConfig(str(tmp_path / "home"), options=options))
    assert request.environment == environment
    assert config.items() <= request.driver_config.items()
    assert "SECRET" not in f"{request.driver_config} {request.conf} {request.arguments} {options}"
    driver = DriverConfig.from_json({**request.driver_config, "launch_key": "k", "application": "a"})
    assert driver.store_options.settings() == options.settings()


@pytest.mark.parametrize(("master", "is_here"), [("local[2]", True), ("spark://head.example:7077", False)])
def test_checkpoints_that_executors_would_not_find_are_told(tmp_path: Path, master: str, is_here: bool) -> None:
    """A note of the deploy reports that executors of a cluster may not reach a folder of this machine."""
    _, view = launched_from(tmp_path, HomeConfig(str(tmp_path / "home")), master=master)
    note = own_disk_note(master, tmp_path / "home")
    assert view.notes == ((note,) if note else ())
    assert not (is_here and note)


def test_spark_is_told_how_to_reach_checkpoints_on_s3(tmp_path: Path, moto_url: str) -> None:
    """Endpoint and credentials of the bucket, in the configuration that travels in a file; the user's settings win."""
    options = StoreOptions(options_for(moto_url))
    config = HomeConfig(f"s3://{BUCKET}/launching", options=options, work_dir=str(tmp_path / "l"))
    mine = {f"spark.hadoop.fs.s3a.bucket.{BUCKET}.input.stream.type": "analytics"}
    request, _ = launched_from(tmp_path, config, conf=mine)
    assert request.needs_s3
    said = {name.removeprefix(f"spark.hadoop.fs.s3a.bucket.{BUCKET}."): value for name, value in request.conf.items()}
    assert (said["endpoint"], said["path.style.access"]) == (moto_url, "true")
    assert (said["access.key"], said["secret.key"]) == (ACCESS_KEY, SECRET_KEY)
    assert said["input.stream.type"] == "analytics"
    assert request.driver_config["checkpoints_uri"] == f"s3://{BUCKET}/launching"
    assert request.folder.startswith(str(tmp_path / "l"))
    assert [text for text in texts_of(Home(config).home) if SECRET_KEY in text] == []


def texts_of(store: Store) -> list[str]:
    """What every object of a home contains."""
    found = [store.get(info.key) for info in store.list_objects("")]
    return [stored.body.decode() for stored in found if stored is not None]


def test_a_spark_connection_is_looked_up_for_each_launch(stage: Stage) -> None:
    """What the connection contains is not recorded: a changed connection holds for the next attempt."""
    asked: list[str] = []

    def connections(conn_id: str) -> Connection:
        asked.append(conn_id)
        return Connection()

    controller = Controller(stage.home, stage.launcher, stage.clock, "tests", connections)
    controller.deploy(stage.request(spark_conn_id="spark_default"))
    request = stage.launcher.requests["d-0001-a0001"]
    assert (request.master, request.spark_submit) == ("", Connection.spark_submit)
    assert request.environment == {"HADOOP_CONF_DIR": "/conf"}
    stage.stopped()
    asked.clear()
    controller.resume(STREAM)
    assert set(asked) == {"spark_default"}
    stage.stopped(attempt=2)
    with pytest.raises(InvalidRequestError, match="only Airflow can look up"):
        stage.controller.resume(STREAM)


def test_a_connection_that_cannot_be_looked_up_any_more_leaves_nothing_half_recorded(
    stage: Stage, tmp_path: Path
) -> None:
    """Everything that is asked of it before the launch is asked before the first record. (Law 1)"""
    asked: list[str] = []

    def connections(conn_id: str) -> Connection:
        asked.append(conn_id)
        if len(asked) == 2:
            raise UnavailableError("Airflow does not answer")
        return Connection()

    home = Home(HomeConfig(str(tmp_path / "h"), allowed=ANY_SECRET), stage.clock)
    controller = Controller(home, stage.launcher, stage.clock, "tests", connections)
    with pytest.raises(UnavailableError):
        controller.deploy(stage.request(spark_conn_id="spark_default"))
    assert list(home.home.list_objects("")) == []


def test_no_launcher_is_given_the_signing_key(stage: Stage) -> None:
    """What a launch consists of, wherever it goes: pods, files of EMR, a host by SSH, YARN or this machine."""
    keys = SigningKeys(("key-of-the-controllers-and-nobody-else",))
    home = Home.of(stage.store, stage.store, stage.folder, stage.clock, keys=keys)
    Controller(home, stage.launcher, stage.clock, "tests").deploy(stage.request())
    (request,) = stage.launcher.requests.values()
    assert not keys.is_in(json.dumps(request.to_json()))
    assert keys.texts[0] in home.credentials({}), "and texts that are shown hide it"


def test_only_an_allowed_spark_connection_is_looked_up(stage: Stage, tmp_path: Path) -> None:
    """Whoever can write a record could else have any connection of Airflow used."""
    asked: list[str] = []

    def connections(conn_id: str) -> Connection:
        asked.append(conn_id)
        return Connection()

    controller = Controller(
        Home(HomeConfig(str(tmp_path / "h")), stage.clock), stage.launcher, stage.clock, "tests", connections
    )
    with pytest.raises(InvalidRequestError, match="this Spark connection is not allowed for this home"):
        controller.deploy(stage.request(spark_conn_id="spark_default"))
    assert asked == []


def test_checkpoints_that_lie_elsewhere_are_not_looked_for_here(stage: Stage, tmp_path: Path) -> None:
    """A deployment is resumed where its checkpoints are, or refused. (Law 5)"""
    from airflow_streamstate.store.memory import MemoryStore

    stage.deploy()
    stage.stopped()
    home = Home.of(stage.store, MemoryStore("elsewhere"), tmp_path, stage.clock)
    with pytest.raises(InvalidRequestError, match="are elsewhere"):
        Controller(home, stage.launcher, stage.clock).resume(STREAM)


def test_a_launch_whose_outcome_is_unknown_is_asked_again(stage: Stage) -> None:
    """The same call again reports it; it stays one driver. (Laws 2 and 8)"""
    stage.launcher.refusal = OutcomeUnknownError("it did not answer in time")
    assert stage.deploy().state == "launching"
    assert stage.launcher.calls == ["launch d-0001-a0001"] * 2
    assert list(stage.launcher.requests) == ["d-0001-a0001"]


def contents(stage: Stage) -> dict[str, bytes]:
    """Everything that is in the home; what a request became is nothing yet."""
    keys = [info.key for info in stage.store.list_objects("") if "/idempotency/" not in info.key]
    return {key: stored.body for key in keys if (stored := stage.store.get(key)) is not None}


def test_what_cannot_be_launched_is_refused_before_anything_changes(stage: Stage) -> None:
    """A bad master or a missing jar is no new version: the old one stays current, and nothing is recorded. (Law 1)"""
    complaint = InvalidRequestError("this is not a master that Spark knows")
    stage.launcher.complaint = complaint
    with pytest.raises(InvalidRequestError, match="not a master"):
        stage.deploy(request_id="r-1")
    assert list(stage.store.list_objects("")) == []
    stage.launcher.complaint = None
    stage.deploy()
    stage.stopped()
    before = contents(stage)
    stage.launcher.complaint = complaint
    for act in (
        lambda: stage.deploy("print('v2')\n", request_id="r-2"),
        lambda: stage.controller.resume(STREAM),
    ):
        with pytest.raises(InvalidRequestError, match="not a master"):
            act()
    assert contents(stage) == before
    assert stage.controller.status(STREAM).state == "stopped"
    stage.launcher.complaint = None
    assert stage.deploy("print('v2')\n", request_id="r-2").deployment_id == "d-0002"


def test_what_is_checked_is_what_is_launched(stage: Stage) -> None:
    """The check sees the request of the launch, although nothing is in its place yet."""
    seen: list[LaunchRequest] = []
    stage.launcher.check = seen.append  # type: ignore[method-assign]
    stage.deploy(
        py_files=(stage.script("x = 1\n", "lib.py"),), jars=(str(stage.script("", "a.jar")),), conf={"spark.a": "b"}
    )
    assert seen == [stage.launcher.requests["d-0001-a0001"]]


def test_jars_travel_from_the_home_to_whichever_machine_launches(stage: Stage, tmp_path: Path) -> None:
    """Under their names, as they were pinned, though their paths are gone; a URI is the driver's own. (Law 15)"""
    jar = stage.script("classes", "udfs-1.2.jar")
    stage.deploy(jars=("s3a://jars/x.jar", str(jar)))
    first = stage.launcher.requests["d-0001-a0001"]
    assert first.jars == ("s3a://jars/x.jar", f"{first.folder}/code/jars/udfs-1.2.jar")
    stage.stopped()
    jar.unlink()
    there = Home.of(stage.store, stage.store, tmp_path / "another machine", stage.clock)
    Controller(there, stage.launcher, stage.clock, "another").resume(STREAM)
    second = stage.launcher.requests["d-0001-a0002"]
    assert Path(second.jars[1]).is_relative_to(tmp_path / "another machine")
    assert (Path(second.jars[1]).name, Path(second.jars[1]).read_text()) == ("udfs-1.2.jar", "classes")


def test_a_jar_that_is_not_there_is_refused_before_anything_is_written(stage: Stage) -> None:
    """No version, no file. (Law 1)"""
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        stage.deploy(jars=(str(stage.folder / "nosuch.jar"),))
    assert list(stage.store.list_objects("")) == []


def test_a_python_environment_travels_from_the_home(stage: Stage) -> None:
    """A launcher gets the path of the file in the folder of the launch; where drivers are does not depend on it."""
    archive = stage.script("python", "env.tar.gz")
    options = {"queue": "streams", "python_env": str(archive)}
    stage.deploy(launcher=LauncherChoice("yarn", options))
    archive.unlink()
    request = stage.launcher.requests["d-0001-a0001"]
    assert request.options == {"queue": "streams", "python_env": f"{request.folder}/code/env/env.tar.gz"}
    assert Path(str(request.options["python_env"])).read_text() == "python"
    assert DriverPlaces(stage.home, stage.launchers).place(stage.spec(), "d-0001-a0001").options == {"queue": "streams"}


def test_a_driver_that_reads_state_has_the_jars_of_its_deployment(stage: Stage) -> None:
    """State may need their classes; the script is not run, and not brought."""
    stage.deploy(jars=(str(stage.script("classes", "x.jar")),))
    what, now = Reading(("d-0001-stopped-000001",)), stage.clock.now()
    run = ScratchRun(STREAM, "r-000000000000-0001", "d-0001", what, now, now, "tests", "request", "", "w")
    spec = reader_spec(stage.spec(), ReadingRequest(stream_id=STREAM), run)
    Drivers(stage.home, stage.launchers, stage.clock).launch(stage.control, spec, 1, {})
    (request,) = [one for key, one in stage.launcher.requests.items() if key.startswith("r-")]
    assert [Path(jar).read_text() for jar in request.jars] == ["classes"]
    assert Path(request.application).read_text() == "# reads state\n"
