"""The launchers for EMR Serverless and EMR on EKS: drivers as job runs, by boto3."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.resources
import itertools
import json
import math
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar

from airflow_streamstate.clock import Clock
from airflow_streamstate.errors import (
    ConflictError,
    InvalidRequestError,
    MalformedMessageError,
    OutcomeUnknownError,
    StreamStateError,
    UnavailableError,
)
from airflow_streamstate.launch.command import DriverBundle, build_bundle, check_remote
from airflow_streamstate.launch.emr_client import (
    CALL_SECONDS,
    LISTED_AT_MOST,
    EmrOnEksOptions,
    EmrOptions,
    EmrServerlessOptions,
    Objects,
    asked,
    new_client,
    new_session,
)
from airflow_streamstate.launch.interface import (
    Connect,
    LaunchHandle,
    LaunchPlace,
    LaunchRequest,
    LaunchState,
    LaunchStatus,
    check_launch,
    check_options,
    check_same,
    id_in,
    no_page,
    untrusted,
)
from airflow_streamstate.launch.rest import Until, shown
from airflow_streamstate.protocol.redaction import is_secret_name

KEY_TAG, SCOPE_TAG = "streamstate-launch-key", "streamstate-scope"
INTENT, RECORD, START = "intent.json", "job-run.json", "start.py"
SPARK_UI = "Spark UI"
NAME_CHARACTERS, ENTRY_CHARACTERS = 64, 256
"""Of EMR on EKS; EMR Serverless takes longer ones."""
MAX_PROPERTIES, MAX_PROPERTY_CHARACTERS = 100, 1024
CLOCKS_APART = timedelta(minutes=5)
POLL_SECONDS, AFTER_GRACE_SECONDS = 2.0, 30.0
LISTING_SECONDS = 60.0
"""For all pages of the runs since an intent."""
_MANAGER = "EMR.secret@"
_LISTS = ("--py-files", "--files", "--jars")
_RUN_ID = re.compile(r"[0-9a-z]{1,64}")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]+")
_LIMITS = {
    "ends_are_told": "EMR reports no exit status except that of success.",
    "one_key_is_one_driver": "EMR reports no exit status of a killed driver, and does not prove its end.",
    "a_caller_may_die": "EMR reports no exit status except that of success.",
    "a_kill_ends_everything": "EMR reports the end of a driver without proof; silent heartbeats and the fence carry.",
    "a_driver_that_fails_at_once_is_told": "EMR reports a failure without proof that all processes have ended.",
    "logs_come_while_it_runs_and_after": "The program of the suite ends with a failure, which EMR does not prove.",
    "secrets_are_not_shown": "A request with secrets is refused: its files are on S3.",
    "no_room_is_pending": "EMR does not say why a run waits.",
    "nothing_is_left_behind": "EMR keeps its record of a run, and one small object keeps the key from starting again.",
}


@dataclass(frozen=True)
class _Run:
    """What EMR reports of one job run."""

    job_run_id: str
    state: str
    reason: str
    tags: Mapping[str, str]
    name: str
    created_at: datetime


@dataclass(frozen=True)
class _Start:
    """One job run to start, as both APIs need it."""

    token: str
    name: str
    tags: Mapping[str, str]
    entry: str
    arguments: tuple[str, ...]
    parameters: str
    conf: Mapping[str, str]


class _EmrLauncher(ABC):
    """A ``Launcher`` by one of the two APIs.

    Args:
        connect: gives the ``boto3.Session`` of an Airflow connection; None outside of Airflow.
    """

    name: ClassVar[str]
    default_master = "yarn"
    limits: ClassVar[Mapping[str, str]] = _LIMITS
    reaching: ClassVar[Collection[str]] = (
        *("execution_role_arn", "launch_uri", "log_uri"),
        *("region", "profile", "endpoint_url"),
    )
    _service: ClassVar[str]
    _options: ClassVar[type[EmrOptions]]
    _states: ClassVar[Mapping[str, LaunchState]]
    _success: ClassVar[str]
    _pages: ClassVar[tuple[str, ...]] = ()
    """Those that ``opened`` makes."""

    def __init__(self, clock: Clock, connect: Connect | None = None) -> None:
        self._clock = clock
        self._connect = connect
        self._clients: dict[tuple[object, ...], Any] = {}
        self._guard = threading.Lock()

    def check(self, request: LaunchRequest) -> None:
        options = self._checked(request)
        check_remote(request, None, is_code_there=False)
        self._check_place(self._client(options, request.conn_id), options)
        self._objects(options, request.conn_id, options.launch_uri).check()

    def spark_version(self, request: LaunchRequest) -> str:
        """ "": EMR has versions of its own, and an image may bring another Spark."""
        self._checked(request)
        return ""

    def launch(self, request: LaunchRequest) -> LaunchHandle:
        options = self._checked(request)
        bundle = build_bundle(request)
        place = request.place
        folder = self._folder(options, place)
        start, files = _start_of(request, bundle, _folder_uri(options, place), _token(place))
        self._check_start(start)
        recorded = self._recorded(folder)
        if recorded is not None:
            return self._handle(options, place, recorded)
        mark = {"scope": place.scope, "launch_key": place.launch_key}
        if not folder.create(INTENT, _json(mark)):
            found = self.find(place)
            if found is not None:
                return found
        for name, body in files.items():
            folder.create(name, body)
        client = self._client(options, place.conn_id)
        try:
            job_run_id = asked("StartJobRun", lambda: self._start(client, options, start), starts=True)
        except ConflictError:
            found = self.find(place)
            if found is None:
                raise OutcomeUnknownError(
                    "EMR has started this launch already, and does not list it yet",
                    launch_key=place.launch_key,
                    next_step="Launch again with the same key.",
                ) from None
            return found
        return self._handle(options, place, self._record(client, options, folder, job_run_id))

    def find(self, place: LaunchPlace) -> LaunchHandle | None:
        """As ``Launcher.find``.

        One read of S3 for a launch that was recorded, two for one that never started. Only if the caller died
        between start and record are the runs since the intent listed (50 a request) and those of its name compared by
        tags.
        """
        options = self._options.from_options(place.options)
        try:
            folder = self._folder(options, place)
            recorded = self._recorded(folder)
            if recorded is not None:
                return self._handle(options, place, recorded)
            intent = folder.read(INTENT)
            if intent is None:
                return None
            client = self._client(options, place.conn_id)
            runs = [
                run
                for listed in self._listed(client, options, _name(place), intent[1] - CLOCKS_APART)
                if listed.name == _name(place)
                and (run := self._ask(client, options, listed.job_run_id)).tags.get(KEY_TAG) == place.launch_key
                and run.tags.get(SCOPE_TAG, "") == place.scope
            ]
            if not runs:
                return None
            first = min(runs, key=lambda run: (run.created_at, run.job_run_id))
            return self._handle(options, place, self._record(client, options, folder, first.job_run_id))
        except InvalidRequestError as error:
            # An AWS that refuses us shows nothing about the driver.
            raise UnavailableError(error.message, next_step=error.next_step, **error.context) from None

    def handle_at(self, place: LaunchPlace, recorded: LaunchHandle) -> LaunchHandle:
        """As ``Launcher.handle_at``. Of the record only the id of the run is taken; the run has to have our tags."""
        check_launch(place, recorded)
        options = self._options.from_options(place.options)
        job_run_id = id_in(place, recorded, "job_run_id", _RUN_ID)
        if not job_run_id:
            raise untrusted(place, "job_run_id", "none", "the id of a job run")
        found = self._handle(options, place, job_run_id)
        check_same(place, recorded, {name: value for name, value in found.data.items() if name != "options"})
        check_options(place, recorded, {name: getattr(options, name) for name in self.reaching})
        return found

    def status(self, handle: LaunchHandle) -> LaunchStatus:
        return self._looked(handle)[0]

    def _looked(self, handle: LaunchHandle) -> tuple[LaunchStatus, bool]:
        """The status, and whether the run is known to be that of this launch."""
        options, place, job_run_id = self._named(handle)
        try:
            run = self._ask(self._client(options, place.conn_id), options, job_run_id)
        except StreamStateError as error:
            words = error.context.get("reason") or error.context.get("code") or ""
            return self._status("unknown", f"{error.message}{f': {words}' if words else ''}"), False
        if run.tags.get(KEY_TAG) != place.launch_key or run.tags.get(SCOPE_TAG, "") != place.scope:
            return self._status("unknown", "the job run that its record names is that of another launch"), False
        if run.state == self._success:
            return self._status("exited", "", exit_code=0), True
        state = self._states.get(run.state)
        said = f"EMR reports {shown(run.state)}{f': {run.reason}' if run.reason else ''}"
        if state is None:
            return self._status("unknown", said, reported_end=run.state in ("FAILED", "CANCELLED")), True
        return self._status(state, said), True

    def kill(self, handle: LaunchHandle, grace_seconds: float) -> LaunchStatus:
        """As ``Launcher.kill``; waits until EMR reports the end, for the grace and half a minute more."""
        deadline = self._clock.monotonic_seconds() + grace_seconds + AFTER_GRACE_SECONDS
        status, is_ours = self._looked(handle)
        if status.has_ended or status.reported_end or not is_ours:
            return status
        options, place, job_run_id = self._named(handle)
        client = self._client(options, place.conn_id)
        try:
            grace = max(0, math.ceil(grace_seconds))
            asked("CancelJobRun", lambda: self._cancel(client, options, job_run_id, grace))
        except StreamStateError as error:
            # It may have ended in the meantime, which EMR refuses to cancel.
            status = self.status(handle)
            if status.has_ended or status.reported_end or status.state == "unknown":
                return status
            return self._status("unknown", f"it could not be cancelled: {error.context.get('reason', error.message)}")
        while True:
            status = self.status(handle)
            over = status.has_ended or status.reported_end or status.state == "unknown"
            if over or self._clock.monotonic_seconds() >= deadline:
                return status
            self._clock.sleep(POLL_SECONDS)

    def logs(self, handle: LaunchHandle, tail_bytes: int) -> str:
        """As ``Launcher.logs``: what EMR has brought to S3, minutes after it was written."""
        options, place, job_run_id = self._named(handle)
        if tail_bytes <= 0:
            return ""
        objects = self._objects(options, place.conn_id, self._logs_uri(options, job_run_id))
        names = sorted((at, name) for name, at in objects.names() if self._is_drivers_log(name))
        tail = b""
        until = Until(self._clock, CALL_SECONDS)
        for _at, name in reversed(names):
            tail = objects.tail(name, tail_bytes - len(tail), until.left(CALL_SECONDS)) + tail
            if len(tail) >= tail_bytes:
                break
        return tail.decode("utf-8", "ignore")

    def links(self, handle: LaunchHandle) -> Mapping[str, str]:
        options, _place, job_run_id = self._named(handle)
        objects = Objects(None, self._logs_uri(options, job_run_id))
        logs = f"https://console.aws.amazon.com/s3/buckets/{objects.bucket}?prefix={objects.prefix}"
        return {"logs on S3": logs, **dict.fromkeys(self._pages, "")}

    def forget(self, handle: LaunchHandle) -> None:
        """As ``Launcher.forget``: all that was put on S3 for the driver, but for the name of its run.

        EMR keeps its own record of a run for as long as it keeps them.
        """
        status = self.status(handle)
        if not (status.has_ended or status.reported_end):
            return
        options, place, _job_run_id = self._named(handle)
        objects = self._folder(options, place)
        for name, _at in objects.names():
            if name != RECORD:
                objects.delete(name)

    @abstractmethod
    def _check_place(self, client: Any, options: Any) -> None:
        """Raise InvalidRequestError where job runs cannot be started."""

    def _check_start(self, start: _Start) -> None:
        """Raise InvalidRequestError for what the API would refuse."""
        long = [name for name, value in start.conf.items() if max(len(name), len(value)) > MAX_PROPERTY_CHARACTERS]
        if len(start.conf) > MAX_PROPERTIES or long:
            raise InvalidRequestError(
                "EMR takes 100 settings of Spark, of 1024 characters each",
                settings=len(start.conf),
                too_long=", ".join(long),
                next_step="Set the others in the application, or in the image.",
            )

    @abstractmethod
    def _start(self, client: Any, options: Any, start: _Start) -> str:
        """The id of the started run."""

    @abstractmethod
    def _run(self, client: Any, options: Any, job_run_id: str) -> _Run:
        """One run."""

    @abstractmethod
    def _listed(self, client: Any, options: Any, name: str, since: datetime) -> Iterator[_Run]:
        """The runs since then; tags may be missing."""

    @abstractmethod
    def _cancel(self, client: Any, options: Any, job_run_id: str, grace_seconds: int) -> None:
        """Ask for the end of a run."""

    @abstractmethod
    def _place_facts(self, options: Any) -> Mapping[str, str]:
        """Where runs are, human-readable, as a handle names it."""

    @abstractmethod
    def _logs_uri(self, options: Any, job_run_id: str) -> str:
        """Below which the logs of a run are."""

    @abstractmethod
    def _is_drivers_log(self, name: str) -> bool:
        """Whether this object below ``_logs_uri`` is output of the driver."""

    def _ask(self, client: Any, options: EmrOptions, job_run_id: str) -> _Run:
        return asked("GetJobRun", lambda: self._run(client, options, job_run_id))

    def _checked(self, request: LaunchRequest) -> EmrOptions:
        options = self._options.from_options(request.options)
        _check_request(request, self.default_master)
        return options

    def _recorded(self, folder: Objects) -> str | None:
        found = folder.read(RECORD)
        if found is None:
            return None
        try:
            job_run_id = str(json.loads(found[0])["job_run_id"])
        except (ValueError, KeyError, TypeError, RecursionError):
            job_run_id = ""
        if not _RUN_ID.fullmatch(job_run_id):
            raise MalformedMessageError("the record of a job run is not what a launcher wrote", key=RECORD)
        return job_run_id

    def _record(self, client: Any, options: EmrOptions, folder: Objects, job_run_id: str) -> str:
        """The id of the run that counts; another one that was started for the same key is cancelled."""
        if folder.create(RECORD, _json({"job_run_id": job_run_id})):
            return job_run_id
        first = self._recorded(folder) or job_run_id
        if first != job_run_id:
            # Refused if it has ended; and were it to work on, the claim in the home would end it.
            with contextlib.suppress(InvalidRequestError):
                asked("CancelJobRun", lambda: self._cancel(client, options, job_run_id, 0))
        return first

    def _handle(self, options: EmrOptions, place: LaunchPlace, job_run_id: str) -> LaunchHandle:
        data = {
            **self._place_facts(options),
            "job_run_id": job_run_id,
            "folder_uri": _folder_uri(options, place),
            "scope": place.scope,
            "conn_id": place.conn_id,
            "options": {name: value for name, value in asdict(options).items() if value},
        }
        return LaunchHandle(launcher=self.name, launch_key=place.launch_key, data=data)

    def _named(self, handle: LaunchHandle) -> tuple[EmrOptions, LaunchPlace, str]:
        if handle.launcher != self.name:
            raise InvalidRequestError(
                "this handle is another launcher's", launcher=handle.launcher, launch_key=handle.launch_key
            )
        data = handle.data
        raw, job_run_id = data.get("options"), data.get("job_run_id")
        scope, conn_id = data.get("scope"), data.get("conn_id") or ""
        if not (isinstance(raw, Mapping) and isinstance(scope, str) and isinstance(conn_id, str)):
            raise MalformedMessageError("this handle names no job run", launch_key=handle.launch_key)
        if not (isinstance(job_run_id, str) and _RUN_ID.fullmatch(job_run_id)):
            raise MalformedMessageError("this handle names no job run", launch_key=handle.launch_key)
        place = LaunchPlace(
            launcher=self.name, scope=scope, launch_key=handle.launch_key, folder="/", options=raw, conn_id=conn_id
        )
        return self._options.from_options(raw), place, job_run_id

    def _status(
        self, state: LaunchState, reason: str, *, exit_code: int | None = None, reported_end: bool = False
    ) -> LaunchStatus:
        return LaunchStatus(state, exit_code, reason, self._clock.now(), reported_end)

    def _folder(self, options: EmrOptions, place: LaunchPlace) -> Objects:
        return self._objects(options, place.conn_id, _folder_uri(options, place))

    def _objects(self, options: EmrOptions, conn_id: str, uri: str) -> Objects:
        return Objects(self._client(options, conn_id, "s3"), uri)

    def _client(self, options: EmrOptions, conn_id: str, service: str = "") -> Any:
        key = (service or self._service, conn_id, options.profile, options.region, options.endpoint_url)
        with self._guard:
            if key not in self._clients:
                # Outside of Airflow a connection's id means nothing: boto3's own chain is asked.
                is_of_airflow = bool(conn_id) and self._connect is not None
                session = (
                    self._connect(conn_id)
                    if is_of_airflow and self._connect is not None
                    else new_session(options.profile, options.region)
                )
                self._clients[key] = new_client(session, service or self._service, options.region, options.endpoint_url)
            return self._clients[key]


class EmrServerlessLauncher(_EmrLauncher):
    """As ``_EmrLauncher``, for a Spark application of EMR Serverless.

    A job run in streaming mode cannot be made to never retry; it gets the fewest attempts that the API takes. A second
    attempt finds the claim of the first and ends with status 4.
    """

    name = "emr-serverless"
    reaching = ("application_id", *_EmrLauncher.reaching)
    _service = "emr-serverless"
    _options = EmrServerlessOptions
    _states: ClassVar[Mapping[str, LaunchState]] = {
        "SUBMITTED": "pending",
        "QUEUED": "pending",
        "PENDING": "pending",
        "SCHEDULED": "pending",
        "RUNNING": "running",
        "CANCELLING": "running",
    }
    _success = "SUCCESS"
    _pages = (SPARK_UI,)

    def _check_place(self, client: Any, options: EmrServerlessOptions) -> None:
        there = {"applicationId": options.application_id}
        application = asked("GetApplication", lambda: client.get_application(**there)["application"])
        if str(application.get("type", "")).lower() != "spark" or application.get("state") == "TERMINATED":
            raise InvalidRequestError(
                "this application of EMR Serverless cannot run Spark",
                application_id=options.application_id,
                type=application.get("type"),
                state=application.get("state"),
                next_step="Give the id of a Spark application: `aws emr-serverless list-applications`.",
            )

    def _start(self, client: Any, options: EmrServerlessOptions, start: _Start) -> str:
        answer = client.start_job_run(
            applicationId=options.application_id,
            clientToken=start.token,
            executionRoleArn=options.execution_role_arn,
            name=start.name,
            mode="STREAMING",
            retryPolicy={"maxFailedAttemptsPerHour": 1},
            executionTimeoutMinutes=0,
            tags=dict(start.tags),
            jobDriver={"sparkSubmit": _job(start)},
            configurationOverrides=_overrides(start, options),
        )
        return str(answer["jobRunId"])

    def _run(self, client: Any, options: EmrServerlessOptions, job_run_id: str) -> _Run:
        raw = client.get_job_run(applicationId=options.application_id, jobRunId=job_run_id)["jobRun"]
        return _run_of({**raw, "id": raw["jobRunId"]})

    def _listed(self, client: Any, options: EmrServerlessOptions, name: str, since: datetime) -> Iterator[_Run]:
        del name  # the API does not filter by it
        pages = client.get_paginator("list_job_runs").paginate(
            applicationId=options.application_id, createdAtAfter=since, PaginationConfig={"PageSize": 50}
        )
        return _runs_of(pages)

    def _cancel(self, client: Any, options: EmrServerlessOptions, job_run_id: str, grace_seconds: int) -> None:
        client.cancel_job_run(
            applicationId=options.application_id, jobRunId=job_run_id, shutdownGracePeriodInSeconds=grace_seconds
        )

    def _place_facts(self, options: EmrServerlessOptions) -> Mapping[str, str]:
        return {"application_id": options.application_id}

    def _logs_uri(self, options: EmrServerlessOptions, job_run_id: str) -> str:
        return f"{options.logs_uri}/applications/{options.application_id}/jobs/{job_run_id}"

    def _is_drivers_log(self, name: str) -> bool:
        return "SPARK_DRIVER/" in name and name.rpartition("/")[2].startswith(("stdout", "stderr"))

    def opened(self, handle: LaunchHandle, page: str) -> str:
        """As ``OpensPages.opened``: the dashboard, which EMR has from a run's start on. The URL is good for an hour."""
        options, place, job_run_id = self._named(handle)
        if page not in self._pages or not isinstance(options, EmrServerlessOptions):
            raise no_page(handle, page)
        if not self._looked(handle)[1]:
            raise UnavailableError("the dashboard cannot be made: EMR does not report this run", page=page)
        client = self._client(options, place.conn_id)
        ids = {"applicationId": options.application_id, "jobRunId": job_run_id}
        url = asked("GetDashboardForJobRun", lambda: str(client.get_dashboard_for_job_run(**ids)["url"]))
        if not url.startswith("https://") or not url.isprintable():
            raise UnavailableError("EMR answers with no address of a dashboard", page=page)
        return url


class EmrOnEksLauncher(_EmrLauncher):
    """As ``_EmrLauncher``, for a virtual cluster of EMR on EKS. Its cancel takes no grace: EMR chooses it."""

    name = "emr-eks"
    reaching = ("virtual_cluster_id", *_EmrLauncher.reaching)
    _service = "emr-containers"
    _options = EmrOnEksOptions
    _states: ClassVar[Mapping[str, LaunchState]] = {
        "PENDING": "pending",
        "SUBMITTED": "pending",
        "RUNNING": "running",
        "CANCEL_PENDING": "running",
    }
    _success = "COMPLETED"

    def _check_place(self, client: Any, options: EmrOnEksOptions) -> None:
        there = {"id": options.virtual_cluster_id}
        cluster = asked("DescribeVirtualCluster", lambda: client.describe_virtual_cluster(**there)["virtualCluster"])
        if cluster.get("state") != "RUNNING":
            raise InvalidRequestError(
                "this virtual cluster does not run",
                virtual_cluster_id=options.virtual_cluster_id,
                state=cluster.get("state"),
                next_step="Give the id of one that runs: `aws emr-containers list-virtual-clusters --states RUNNING`.",
            )

    def _check_start(self, start: _Start) -> None:
        super()._check_start(start)
        if len(start.entry) > ENTRY_CHARACTERS:
            raise InvalidRequestError(
                "EMR on EKS takes an entry point of 256 characters",
                characters=len(start.entry),
                next_step="Give a shorter launch_uri.",
            )

    def _start(self, client: Any, options: EmrOnEksOptions, start: _Start) -> str:
        answer = client.start_job_run(
            virtualClusterId=options.virtual_cluster_id,
            clientToken=start.token,
            executionRoleArn=options.execution_role_arn,
            releaseLabel=options.release_label,
            name=start.name,
            retryPolicyConfiguration={"maxAttempts": 1},
            tags=dict(start.tags),
            jobDriver={"sparkSubmitJobDriver": _job(start)},
            configurationOverrides=_overrides(start, options),
        )
        return str(answer["id"])

    def _run(self, client: Any, options: EmrOnEksOptions, job_run_id: str) -> _Run:
        return _run_of(client.describe_job_run(virtualClusterId=options.virtual_cluster_id, id=job_run_id)["jobRun"])

    def _listed(self, client: Any, options: EmrOnEksOptions, name: str, since: datetime) -> Iterator[_Run]:
        pages = client.get_paginator("list_job_runs").paginate(
            virtualClusterId=options.virtual_cluster_id, name=name, createdAfter=since
        )
        return _runs_of(pages)

    def _cancel(self, client: Any, options: EmrOnEksOptions, job_run_id: str, grace_seconds: int) -> None:
        del grace_seconds  # the API takes none
        client.cancel_job_run(virtualClusterId=options.virtual_cluster_id, id=job_run_id)

    def _place_facts(self, options: EmrOnEksOptions) -> Mapping[str, str]:
        return {"cluster": options.virtual_cluster_id}

    def _logs_uri(self, options: EmrOnEksOptions, job_run_id: str) -> str:
        return f"{options.logs_uri}/{options.virtual_cluster_id}/jobs/{job_run_id}"

    def _is_drivers_log(self, name: str) -> bool:
        folder, _, file = name.rpartition("/")
        return folder.endswith("-driver") and file.startswith(("stdout", "stderr"))


def _check_request(request: LaunchRequest, master: str) -> None:
    """Refuse what a driver on EMR cannot have.

    Raises:
        InvalidRequestError: see the message.
    """
    config = request.driver_config
    for name in ("home_uri", "checkpoints_uri"):
        uri = config.get(name)
        if uri is not None and not str(uri).startswith(("s3://", "s3a://")):
            raise InvalidRequestError(
                "a driver on EMR reaches S3 only",
                **{name: uri},
                next_step="Put home and checkpoints on S3: --home s3://bucket/prefix.",
            )
    secret = [name for name in request.environment if is_secret_name(name)]
    secret += [name for name, value in request.conf.items() if is_secret_name(name) and not value.startswith(_MANAGER)]
    if config.get("secrets") or secret:
        raise InvalidRequestError(
            "a driver on EMR gets no secrets from us, since its files are on S3",
            **({"names": ", ".join(secret)} if secret else {}),
            next_step="Use the execution role in place of AWS keys, and EMR.secret@NAME of Secrets Manager in --conf.",
        )
    if request.master not in ("", master):
        raise InvalidRequestError(
            "EMR chooses Spark's master itself", master=request.master, next_step="Leave --master out."
        )
    if request.spark_submit is not None or request.working_folder is not None:
        raise InvalidRequestError(
            "EMR has its own spark-submit, and a separate folder for each driver",
            next_step="Leave out the Spark connection and --working-folder.",
        )


def _start_of(
    request: LaunchRequest, bundle: DriverBundle, folder_uri: str, token: str
) -> tuple[_Start, Mapping[str, bytes]]:
    """What to start, and its files by their names in the folder of the launch."""
    files = {name: body for name, body in bundle.files.items() if name != "spark.properties"}
    start_file = importlib.resources.files("airflow_streamstate.launch").joinpath("emr_start.py").read_bytes()
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{name}\0{len(files[name])}\0".encode() + files[name])
    # Files of two versions of this package never mix, if a caller dies and a newer one continues.
    version = digest.hexdigest()[:12]
    base = f"{folder_uri}/{version}/"
    words, parameters, program = list(bundle.submit_arguments), [], []
    while words:
        word = words.pop(0)
        if word in _LISTS or word == "--packages":
            parameters += [word, ",".join(_there(item, base, files) for item in words.pop(0).split(","))]
        elif word in ("--master", "--deploy-mode", "--properties-file"):
            words.pop(0)
        elif word != "--load-spark-defaults":
            program = [word, *words]
            break
    conf = dict(bundle.conf)
    if "spark.ui.enabled" not in request.conf:
        conf.pop("spark.ui.enabled", None)  # EMR's dashboard shows it, behind a login
    start = _Start(
        token=token,
        name=_name(request.place),
        tags={KEY_TAG: request.launch_key, SCOPE_TAG: request.scope},
        entry=f"{folder_uri}/{version}-{START}",
        arguments=(base, *program),
        parameters=" ".join(parameters),
        conf=conf,
    )
    return start, {**{f"{version}/{name}": body for name, body in files.items()}, f"{version}-{START}": start_file}


def _there(item: str, base: str, files: Mapping[str, bytes]) -> str:
    if any(character.isspace() for character in item):
        raise InvalidRequestError(
            "EMR takes no file with a blank in its name", file=item, next_step="Give the file another name."
        )
    return f"{base}{item}" if item.partition("#")[0] in files else item


def _job(start: _Start) -> dict[str, object]:
    return {
        "entryPoint": start.entry,
        "entryPointArguments": list(start.arguments),
        "sparkSubmitParameters": start.parameters,
    }


def _overrides(start: _Start, options: EmrOptions) -> dict[str, object]:
    # As a classification, values need no quoting.
    return {
        "applicationConfiguration": [{"classification": "spark-defaults", "properties": dict(start.conf)}],
        "monitoringConfiguration": {"s3MonitoringConfiguration": {"logUri": f"{options.logs_uri}/"}},
    }


def _runs_of(pages: Iterable[Mapping[str, Any]]) -> Iterator[_Run]:
    found = (_run_of(raw) for page in pages for raw in page["jobRuns"])
    return iter(asked("ListJobRuns", lambda: list(itertools.islice(found, LISTED_AT_MOST)), seconds=LISTING_SECONDS))


def _run_of(raw: Mapping[str, Any]) -> _Run:
    return _Run(
        job_run_id=str(raw["id"]),
        state=str(raw.get("state", "")),
        reason=shown(raw.get("stateDetails") or raw.get("failureReason") or ""),
        tags=dict(raw.get("tags") or {}),
        name=str(raw.get("name", "")),
        created_at=raw["createdAt"],
    )


def _token(place: LaunchPlace) -> str:
    """64 characters, as both APIs take them."""
    return hashlib.sha256(f"{place.scope}\n{place.launch_key}".encode()).hexdigest()


def _name(place: LaunchPlace) -> str:
    """Readable, and unique to this scope and key as far as 64 bits go; the tags are certain."""
    end = f"-{_token(place)[:16]}"
    words = f"{place.scope.rpartition('/')[2]}/{place.launch_key}".strip("/")
    words = "/".join(_NOT_IN_NAMES.sub("-", word) for word in words.split("/"))
    return f"{words[: NAME_CHARACTERS - len(end)]}{end}"


def _folder_uri(options: EmrOptions, place: LaunchPlace) -> str:
    return f"{options.launch_uri.rstrip('/')}/{_NOT_IN_NAMES.sub('-', place.launch_key)}-{_token(place)[:32]}"


def _json(value: Mapping[str, object]) -> bytes:
    return json.dumps(value, sort_keys=True).encode() + b"\n"
