"""EMR Serverless and EMR on EKS: what is asked of AWS, and what its answers mean.

moto runs the flows. Its ``clientToken`` is not idempotent, as that of AWS is by its manual; its runs start
nothing: tokens, states and races are tested by botocore's Stubber. No test has seen AWS.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

import airflow_streamstate.launch.emr
from airflow_streamstate.errors import InvalidRequestError, OutcomeUnknownError, UnavailableError
from airflow_streamstate.launch.emr import EmrOnEksLauncher, EmrServerlessLauncher, _EmrLauncher
from airflow_streamstate.launch.interface import LaunchHandle, LaunchRequest
from support.fake_clock import FakeClock
from support.launches import launch_request
from support.s3_server import BUCKET, REGION, s3_server

pytestmark = pytest.mark.fast

ROLE = "arn:aws:iam::123456789012:role/streams"
SCOPE = f"1b4e28ba-2fa1-11d2-883f-0016d3cca427/{'s' * 63}"
TAGS = {"streamstate-launch-key": "d-0001-a0001", "streamstate-scope": SCOPE}
KEYS = {"aws_access_key_id": "test-key", "aws_secret_access_key": "test-secret", "region_name": REGION}
BOTH = [EmrServerlessLauncher, EmrOnEksLauncher]
SECRET = "hunter2-but-longer"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """moto, for S3 and EMR; its runs of EMR Serverless would end as soon as they start."""
    with pytest.MonkeyPatch.context() as patch, s3_server() as url:
        patch.setattr("moto.emrserverless.models.JOB_STATUS", "RUNNING")
        yield url


class Aws:
    """A session whose clients are real, with chosen answers for one of the EMR services; requests are kept.

    Args:
        answers: of the Stubber: method, answer, or error code. None for moto's.
    """

    def __init__(self, answers: list[tuple[str, Any]] | None = None) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self._answers = answers
        self._session = boto3.Session(**KEYS)

    def client(self, service: str, **more: Any) -> Any:
        client = self._session.client(service, **more)
        if service == "s3":
            return client
        client.meta.events.register(f"before-parameter-build.{service}", self._keep)
        if self._answers is not None:
            stubber = Stubber(client)
            for method, answer in self._answers:
                if isinstance(answer, str):
                    stubber.add_client_error(method, answer, http_status_code=500 if "Internal" in answer else 400)
                else:
                    stubber.add_response(method, answer)
            stubber.activate()
        return client

    def _keep(self, params: dict[str, Any], model: Any, **_more: Any) -> None:
        self.asked.append((model.name, dict(params)))
        check_model(model.input_shape, params)


def check_model(shape: Any, value: Any) -> None:
    """What botocore does not check itself: lengths, patterns and values of the service's model."""
    if shape.type_name == "structure":
        for name, part in value.items():
            check_model(shape.members[name], part)
    elif shape.type_name == "list":
        for part in value:
            check_model(shape.member, part)
    elif shape.type_name == "map":
        assert len(value) <= shape.metadata.get("max", 1 << 30)
        for name, part in value.items():
            check_model(shape.key, name)
            check_model(shape.value, part)
    elif shape.type_name == "string":
        assert len(value) <= shape.metadata.get("max", 1 << 30), (shape.name, value)
        assert value in (getattr(shape, "enum", None) or [value])
        pattern = shape.metadata.get("pattern")
        if pattern and "\\u" not in pattern:
            assert re.fullmatch(pattern, value, re.DOTALL), (shape.name, value)


def options_of(kind: type[_EmrLauncher], endpoint: str, place: str = "00abc") -> dict[str, object]:
    own = (
        {"application_id": place}
        if kind is EmrServerlessLauncher
        else {"virtual_cluster_id": place, "release_label": "emr-7.9.0-latest"}
    )
    return {
        **own,
        "execution_role_arn": ROLE,
        "launch_uri": f"s3://{BUCKET}/launches",
        "endpoint_url": endpoint,
        "region": REGION,
    }


def request_for(folder: Path, options: Mapping[str, object], kind: type[_EmrLauncher], key: str) -> LaunchRequest:
    (folder / "job.py").write_text("import sums\nprint(sums.ADDED)\n")
    (folder / "sums.py").write_text("ADDED = 3\n")
    return replace(
        launch_request(folder, ""),
        launch_key=key,
        application=str(folder / "job.py"),
        modules=("sums.py",),
        master=kind.default_master,
        conf={"spark.sql.shuffle.partitions": "5", "spark.app.name": 'it\'s "quoted" here'},
        environment={},
        packages=("org.example:thing:1.0",),
        driver_config={"home_uri": "s3://streams/home", "checkpoints_uri": "s3a://streams/home"},
        spark_submit=None,
        launcher=kind.name,
        scope=SCOPE,
        options=options,
        conn_id="aws",
    )


def launcher_of(kind: type[_EmrLauncher], aws: Aws) -> _EmrLauncher:
    return kind(FakeClock(), lambda _conn_id: aws)


def key_of(request: pytest.FixtureRequest) -> str:
    """Objects on the server of this module are those of one test."""
    return f"d-{hashlib.sha256(request.node.name.encode()).hexdigest()[:8]}-a0001"


def handle_of(kind: type[_EmrLauncher], endpoint: str) -> LaunchHandle:
    data = {"job_run_id": "00run", "scope": SCOPE, "options": options_of(kind, endpoint)}
    return LaunchHandle(kind.name, "d-0001-a0001", {**data, "conn_id": "aws"})


def run_answer(kind: type[_EmrLauncher], state: str, run_id: str = "00run", **more: Any) -> tuple[str, dict[str, Any]]:
    at = datetime(2026, 3, 1, tzinfo=timezone.utc)
    if kind is EmrOnEksLauncher:
        run = {"id": run_id, "state": state, "tags": TAGS, "createdAt": at}
        return "describe_job_run", {"jobRun": {**run, **more}}
    arn = "arn:aws:emr-serverless:us-east-1:123456789012:/applications/00abc/jobruns/00run"
    run = {
        "applicationId": "00abc",
        "jobRunId": run_id,
        "arn": arn,
        "createdBy": "arn:aws:sts::123456789012:x/y",
        "createdAt": at,
        "updatedAt": at,
        "executionRole": ROLE,
        "state": state,
        "stateDetails": "at work",
        "releaseLabel": "emr-7.9.0",
        "jobDriver": {"sparkSubmit": {"entryPoint": "s3://streams/start.py"}},
        "tags": TAGS,
    }
    return "get_job_run", {"jobRun": {**run, **more}}


def made(aws: Aws, endpoint: str, kind: type[_EmrLauncher]) -> str:
    """An application, or a virtual cluster, of moto; its id."""
    if kind is EmrServerlessLauncher:
        client = aws.client("emr-serverless", endpoint_url=endpoint)
        return client.create_application(name="streams", type="SPARK", releaseLabel="emr-7.9.0")["applicationId"]
    client = aws.client("emr-containers", endpoint_url=endpoint)
    taken = len(client.list_virtual_clusters()["virtualClusters"])
    provider = {"id": "eks", "type": "EKS", "info": {"eksInfo": {"namespace": f"streams-{taken}"}}}
    eks = aws.client("eks", endpoint_url=endpoint)
    if not eks.list_clusters()["clusters"]:
        eks.create_cluster(name="eks", roleArn=ROLE, resourcesVpcConfig={})
    return client.create_virtual_cluster(name="streams", containerProvider=provider)["id"]


@pytest.mark.parametrize("kind", BOTH)
def test_a_driver_is_started_found_cancelled_and_forgotten(
    kind: type[_EmrLauncher], endpoint: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """One key is one run, from any launcher, and what was put on S3 goes with it."""
    aws = Aws()
    driver = request_for(tmp_path, options_of(kind, endpoint, made(aws, endpoint, kind)), kind, key_of(request))
    launcher = launcher_of(kind, aws)
    launcher.check(driver)
    assert launcher.find(driver.place) is None
    handle = launcher.launch(driver)
    assert LaunchHandle.from_json(json.loads(json.dumps(handle.to_json()))) == handle
    assert launcher_of(kind, Aws()).launch(driver) == handle
    assert launcher_of(kind, Aws()).find(driver.place) == handle
    assert launcher.find(replace(driver.place, scope="another/stream")) is None
    assert [name for name, _ in aws.asked].count("StartJobRun") == 1
    assert launcher.status(handle).state in ("pending", "running")
    launcher.forget(handle)
    s3 = aws.client("s3", endpoint_url=endpoint)
    prefix = str(handle.data["folder_uri"]).removeprefix(f"s3://{BUCKET}/")

    def left() -> list[str]:
        found = s3.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", [])
        return [item["Key"].removeprefix(f"{prefix}/") for item in found]

    assert len(left()) > 5, "a driver that may run was forgotten"
    killed = launcher.kill(handle, 3.2)
    assert (killed.state, killed.reported_end) == ("unknown", True), "a cancelled run is no proof of an end"
    assert launcher.kill(handle, 0.0).reported_end
    launcher.forget(handle)
    launcher.forget(handle)
    assert left() == ["job-run.json"]
    assert launcher.launch(driver) == handle, "a forgotten key starts a second driver"


@pytest.mark.parametrize("kind", BOTH)
def test_a_caller_may_die_between_start_and_record(
    kind: type[_EmrLauncher], endpoint: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The run is found in the list by its tags, and recorded; nothing is started again."""
    aws = Aws()
    driver = request_for(tmp_path, options_of(kind, endpoint, made(aws, endpoint, kind)), kind, key_of(request))
    handle = launcher_of(kind, aws).launch(driver)
    record = f"{handle.data['folder_uri']}/job-run.json".removeprefix(f"s3://{BUCKET}/")
    s3 = aws.client("s3", endpoint_url=endpoint)
    s3.delete_object(Bucket=BUCKET, Key=record)
    started = dict(aws.asked)["StartJobRun"]
    # moto reports that every run started at midnight.
    method = run_answer(kind, "RUNNING")[0]
    runs = [run_answer(kind, "RUNNING", **more)[1]["jobRun"] for more in candidates(started)]
    listed = [{**run, "id": run.get("jobRunId", run.get("id"))} for run in runs]
    if kind is EmrServerlessLauncher:
        hidden = ("jobRunId", "jobDriver", "tags")
        listed = [{name: value for name, value in run.items() if name not in hidden} for run in listed]
    answers = [("list_job_runs", {"jobRuns": listed}), *((method, {"jobRun": run}) for run in runs[1:])]
    asked = Aws(answers)
    found = launcher_of(kind, asked).launch(driver)
    assert found.data["job_run_id"] == "00ours"
    assert {**found.data, "job_run_id": ""} == {**handle.data, "job_run_id": ""}
    assert "StartJobRun" not in [name for name, _ in asked.asked]
    listing = dict(asked.asked)["ListJobRuns"]
    since = listing["createdAtAfter" if kind is EmrServerlessLauncher else "createdAfter"]
    assert since < s3.head_object(Bucket=BUCKET, Key=record.replace("job-run", "intent"))["LastModified"]
    assert json.loads(s3.get_object(Bucket=BUCKET, Key=record)["Body"].read()) == {"job_run_id": "00ours"}


def candidates(started: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Facts of listed runs: one of a different name, one of this name with other tags, ours, and one after it."""
    name, tags = started["name"], started["tags"]
    after = datetime(2026, 3, 2, tzinfo=timezone.utc)
    return [
        {"name": f"{name}x", "tags": tags, "run_id": "00other"},
        {"name": name, "tags": {**tags, "streamstate-scope": "another"}, "run_id": "00far"},
        {"name": name, "tags": tags, "run_id": "00late", "createdAt": after},
        {"name": name, "tags": tags, "run_id": "00ours"},
    ]


@pytest.mark.parametrize("kind", BOTH)
def test_what_is_asked_of_aws(
    kind: type[_EmrLauncher], endpoint: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The token is of scope and key, nothing is retried, and the files are all on S3."""
    aws, other = Aws(), Aws()
    place = made(aws, endpoint, kind)
    driver = request_for(tmp_path, options_of(kind, endpoint, place), kind, key_of(request))
    launcher_of(kind, aws).launch(driver)
    launcher_of(kind, other).launch(replace(driver, scope="another/stream"))
    asked, beside = (dict(one.asked)["StartJobRun"] for one in (aws, other))
    assert asked["clientToken"] != beside["clientToken"]
    assert asked["name"] != beside["name"]
    assert asked["name"].startswith("sss")
    assert asked["tags"] == {"streamstate-launch-key": driver.launch_key, "streamstate-scope": SCOPE}
    if kind is EmrServerlessLauncher:
        assert (asked["mode"], asked["executionTimeoutMinutes"]) == ("STREAMING", 0)
        assert asked["retryPolicy"] == {"maxFailedAttemptsPerHour": 1}
        job = asked["jobDriver"]["sparkSubmit"]
    else:
        assert asked["retryPolicyConfiguration"] == {"maxAttempts": 1}
        job = asked["jobDriver"]["sparkSubmitJobDriver"]
    base, *program = job["entryPointArguments"]
    assert program == ["runner.py", "--", "driver.json"]
    s3 = aws.client("s3", endpoint_url=endpoint)
    words = job["sparkSubmitParameters"].split()
    assert words[2:] == ["--packages", "org.example:thing:1.0"]
    for uri in (job["entryPoint"], f"{base}driver.json", *words[1].split(",")):
        assert s3.head_object(Bucket=BUCKET, Key=uri.removeprefix(f"s3://{BUCKET}/"))["ContentLength"] > 0
    (defaults,) = asked["configurationOverrides"]["applicationConfiguration"]
    assert defaults["properties"] == {"spark.sql.shuffle.partitions": "5", "spark.app.name": 'it\'s "quoted" here'}


def test_the_entry_point_fetches_the_folder_and_runs_the_program(endpoint: str, tmp_path: Path) -> None:
    """With neighbours, arguments and variables, in a process without this package."""
    s3 = Aws().client("s3", endpoint_url=endpoint)
    program = (
        "import os, sys, near\nprint(__name__, sys.argv, near.FAR, os.environ['NAMED'], os.path.exists('a/b.txt'))"
    )
    files = {
        "run.py": program,
        "near.py": "FAR = 7",
        "a/b.txt": "x",
        "driver.json": json.dumps({"environment": {"NAMED": "größer"}}),
    }
    for name, text in files.items():
        s3.put_object(Bucket=BUCKET, Key=f"entry/{name}", Body=text.encode())
    start = Path(airflow_streamstate.launch.emr.__file__).with_name("emr_start.py")
    environ = {
        "AWS_ACCESS_KEY_ID": "k",
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_DEFAULT_REGION": REGION,
        "AWS_ENDPOINT_URL_S3": endpoint,
        "TMPDIR": str(tmp_path),
        "PYTHONUTF8": "1",
    }
    ran = subprocess.run(
        [sys.executable, str(start), f"s3://{BUCKET}/entry/", "run.py", "--", "driver.json"],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stderr == ""
    assert ran.stdout == "__main__ ['run.py', '--', 'driver.json'] 7 größer True\n"


STATES = [
    (EmrServerlessLauncher, "SUBMITTED", "pending", False),
    (EmrServerlessLauncher, "QUEUED", "pending", False),
    (EmrServerlessLauncher, "PENDING", "pending", False),
    (EmrServerlessLauncher, "SCHEDULED", "pending", False),
    (EmrServerlessLauncher, "RUNNING", "running", False),
    (EmrServerlessLauncher, "CANCELLING", "running", False),
    (EmrServerlessLauncher, "SUCCESS", "exited", False),
    (EmrServerlessLauncher, "FAILED", "unknown", True),
    (EmrServerlessLauncher, "CANCELLED", "unknown", True),
    (EmrServerlessLauncher, "SOMETHING_NEW", "unknown", False),
    (EmrOnEksLauncher, "SUBMITTED", "pending", False),
    (EmrOnEksLauncher, "PENDING", "pending", False),
    (EmrOnEksLauncher, "RUNNING", "running", False),
    (EmrOnEksLauncher, "CANCEL_PENDING", "running", False),
    (EmrOnEksLauncher, "COMPLETED", "exited", False),
    (EmrOnEksLauncher, "FAILED", "unknown", True),
    (EmrOnEksLauncher, "CANCELLED", "unknown", True),
]


@pytest.mark.parametrize(("kind", "said", "state", "is_reported"), STATES)
def test_what_a_state_means(kind: type[_EmrLauncher], said: str, state: str, is_reported: bool, endpoint: str) -> None:
    """An end without an exit status is reported, not proven."""
    aws = Aws([run_answer(kind, said, stateDetails="no capacity")])
    status = launcher_of(kind, aws).status(handle_of(kind, endpoint))
    assert (status.state, status.reported_end) == (state, is_reported)
    assert status.exit_code == (0 if state == "exited" else None)
    assert state == "exited" or "no capacity" in status.reason


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("code", ["ResourceNotFoundException", "AccessDeniedException", "InternalServerException"])
def test_a_run_that_cannot_be_asked_is_unknown(kind: type[_EmrLauncher], code: str, endpoint: str) -> None:
    """Neither an error nor a run that is not listed is an end."""
    asked = run_answer(kind, "RUNNING")[0]
    status = launcher_of(kind, Aws([(asked, code)] * 3)).status(handle_of(kind, endpoint))
    assert (status.state, status.reported_end) == ("unknown", False)
    assert code in status.reason or "AWS" in status.reason


def test_every_state_of_the_models_is_known() -> None:
    """So that a new one of a later boto3 is seen here first."""
    for kind, service in ((EmrServerlessLauncher, "emr-serverless"), (EmrOnEksLauncher, "emr-containers")):
        client = boto3.Session(**KEYS).client(service)
        states = set(client.meta.service_model.shape_for("JobRunState").enum)
        assert states == {said for one, said, _, _ in STATES if one is kind} - {"SOMETHING_NEW"}


def test_a_lost_answer_leaves_the_start_open(endpoint: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """It may have started: the same launch again reports it, by its token."""
    kind = EmrServerlessLauncher
    driver = request_for(tmp_path, options_of(kind, endpoint), kind, key_of(request))
    aws = Aws([("start_job_run", "InternalServerException")] * 3)
    with pytest.raises(OutcomeUnknownError, match="the answer of AWS was lost"):
        launcher_of(kind, aws).launch(driver)
    tokens = {params["clientToken"] for name, params in aws.asked if name == "StartJobRun"}
    assert len(tokens) == 1


def test_an_aws_that_refuses_us_says_nothing_about_a_driver(
    endpoint: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """``find`` then cannot be asked, which is not *never started*."""
    kind = EmrServerlessLauncher
    driver = request_for(tmp_path, options_of(kind, endpoint), kind, key_of(request))
    with pytest.raises(InvalidRequestError, match="AWS refuses this"):
        launcher_of(kind, Aws([("start_job_run", "ValidationException")])).launch(driver)
    with pytest.raises(UnavailableError, match="AWS refuses this"):
        launcher_of(kind, Aws([("list_job_runs", "AccessDeniedException")])).find(driver.place)
    assert launcher_of(kind, Aws([("list_job_runs", {"jobRuns": []})])).find(driver.place) is None


@pytest.mark.parametrize("kind", BOTH)
def test_the_end_of_a_log_comes_from_s3(kind: type[_EmrLauncher], endpoint: str) -> None:
    """Of the driver alone, unpacked, and no more than was asked for."""
    s3 = Aws().client("s3", endpoint_url=endpoint)
    handle = handle_of(kind, endpoint)
    base, driver, executor = (
        ("launches/logs/applications/00abc/jobs/00run", "SPARK_DRIVER", "SPARK_EXECUTOR/1")
        if kind is EmrServerlessLauncher
        else ("launches/logs/00abc/jobs/00run", "containers/spark-1/spark-1-driver", "containers/spark-1/exec-1")
    )
    assert launcher_of(kind, Aws([])).logs(handle, 100) == ""
    for name, text in ((f"{driver}/stdout.gz", "größer\n" * 99999), (f"{executor}/stdout.gz", "other\n")):
        s3.put_object(Bucket=BUCKET, Key=f"{base}/{name}", Body=gzip.compress(text.encode()))
    launcher = launcher_of(kind, Aws([]))
    assert launcher.logs(handle, 9) == "größer\n"[-9:]
    assert len(launcher.logs(handle, 4).encode()) <= 4
    assert launcher.logs(handle, 0) == ""
    assert "other" not in launcher.logs(handle, 1 << 30)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"driver_config": {"secrets": [SECRET]}}, "gets no secrets"),
    ({"environment": {"AWS_SECRET_ACCESS_KEY": SECRET}}, "gets no secrets"),
    ({"conf": {"spark.hadoop.fs.s3a.secret.key": SECRET}}, "gets no secrets"),
    ({"driver_config": {"home_uri": "file:///home/me/streams"}}, "reaches S3 only"),
    ({"driver_config": {"home_uri": "s3://a/b", "checkpoints_uri": "gs://a/b"}}, "reaches S3 only"),
    ({"master": "local[2]"}, "chooses Spark's master"),
    ({"working_folder": "/data"}, "a separate folder"),
    ({"conf": {f"spark.x{number}": "1" for number in range(101)}}, "100 settings"),
]


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize(("changes", "words"), REFUSED)
def test_what_emr_cannot_do_is_refused_before_anything_is_written(
    kind: type[_EmrLauncher],
    changes: dict[str, Any],
    words: str,
    endpoint: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    """With the next step, and without the secret."""
    driver = request_for(tmp_path, options_of(kind, endpoint), kind, key_of(request))
    with pytest.raises(InvalidRequestError, match=words) as caught:
        launcher_of(kind, Aws([])).launch(replace(driver, **changes))
    assert caught.value.next_step
    assert SECRET not in str(caught.value)
    assert launcher_of(kind, Aws([])).find(driver.place) is None


def test_a_reference_of_secrets_manager_is_no_secret(
    endpoint: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """EMR resolves it in the driver."""
    kind = EmrServerlessLauncher
    aws = Aws()
    driver = request_for(tmp_path, options_of(kind, endpoint, made(aws, endpoint, kind)), kind, key_of(request))
    launcher_of(kind, aws).check(replace(driver, conf={"spark.kafka.password": "EMR.secret@kafka"}))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"aplication_id": "00abc"}, "Did you mean application_id"),
        ({"application_id": "00 ABC"}, "lower-case letters"),
        ({"execution_role_arn": "streams"}, "arn:aws:iam"),
        ({"launch_uri": "/tmp/launches"}, "s3://bucket/prefix"),
        ({"launch_uri": ""}, "--launcher-option launch_uri="),
        ({"endpoint_url": "https://me:secret@host"}, "without a login"),
        ({"region": ["eu-west-3"]}, "a name without blanks"),
    ],
)
def test_options_are_checked_by_name(changes: dict[str, object], words: str) -> None:
    """Each with the next step."""
    options = {**options_of(EmrServerlessLauncher, "http://127.0.0.1:1"), **changes}
    with pytest.raises(InvalidRequestError) as caught:
        EmrServerlessLauncher._options.from_options(options)
    assert words in caught.value.next_step


def test_without_a_profile_there_is_one_sentence(endpoint: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """boto3's chain outside of Airflow."""
    kind = EmrServerlessLauncher
    options = {**options_of(kind, endpoint), "profile": "nosuch"}
    driver = replace(request_for(tmp_path, options, kind, key_of(request)), conn_id="")
    with pytest.raises(InvalidRequestError, match="boto3 refuses these settings of AWS"):
        kind(FakeClock()).check(driver)
