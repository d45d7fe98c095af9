"""The YARN launcher: drivers as applications, by ``spark-submit --deploy-mode cluster``."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from airflow_streamstate.clock import Clock
from airflow_streamstate.errors import (
    ConflictError,
    InvalidRequestError,
    MalformedMessageError,
    OutcomeUnknownError,
    StreamStateError,
    UnavailableError,
)
from airflow_streamstate.launch.command import (
    CODE,
    DRIVER_VARIABLE,
    DriverBundle,
    build_bundle,
    check_remote,
    check_shown,
)
from airflow_streamstate.launch.driver_zip import zip_bytes
from airflow_streamstate.launch.folder import LaunchFolder, tail_bytes, translated, write_file
from airflow_streamstate.launch.interface import (
    DRIVER_CONFIG,
    Connect,
    LaunchHandle,
    LaunchPlace,
    LaunchRequest,
    LaunchState,
    LaunchStatus,
    check_launch,
    check_same,
    id_in,
    untrusted,
)
from airflow_streamstate.launch.processes import exit_sentence, output_of
from airflow_streamstate.launch.rest import Until, shown
from airflow_streamstate.launch.spark_home import SparkSubmit, check_java, home_of, own_spark_submit, version_of
from airflow_streamstate.launch.yarn_api import (
    APPLICATION,
    CALL_SECONDS,
    ENDED,
    LISTING_BYTES,
    MUST,
    TAGS,
    YOUNG_SECONDS,
    ContainerOnNode,
    ResourceManager,
    YarnOptions,
    is_application,
    log_in,
    need_addresses,
    number,
    objects_in,
    read_site,
    text,
)
from airflow_streamstate.protocol.redaction import redact_text, secrets_of
from airflow_streamstate.protocol.signing import without_signing_key

UNPACKED = "streamstate"
"""The folder of driver.json and the code, below the container's own."""
ENVIRONMENT = "env"
"""The folder of an unpacked python_env."""
SUBMIT_SECONDS = 300.0
ASK_AGAIN_SECONDS = 2.0
ASK_AGAIN_TIMES = 15
FIND_SECONDS = 90.0
"""For all answers, with those of a ResourceManager that has just started."""
KILL_SECONDS = 40.0
POLL_SECONDS = 0.5
LOST_CLAIM = 4
CLASS_SECONDS = 60.0
AGGREGATED_BYTES = 64 << 20
"""Of the logs that one node keeps of an application."""
_APP_LOGS = "/tmp/logs"  # noqa: S108 - YARN's own default
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@$-]{0,100}")
_FILE_SHELL = "org.apache.hadoop.fs.FsShell"
_LOGS = ("stdout", "stderr")
"""The driver's own words come first; without any, those of the JVM."""
RECORD = "yarn.json"
"""The handle, in the folder of the launch."""
_BUNDLE = "bundle.zip"
_LOCK = "submit.lock"
_SUBMIT_LOG = "submit.log"
_WITH_STATUS = re.compile(r"User application exited with (?:status )?([0-9]{1,3})\b")
_WITHOUT_SESSION = "User did not initialize spark context!"
_REASON = re.compile(r"\(reason: ([^\n]*)\)")
_EXIT = re.compile(r"exited with\s+exitCode: (-?[0-9]+)")
_SHOWN = re.compile(
    r"spark\.(?:yarn\.appMasterEnv\.|executorEnv\.|(?:driver|executor|yarn\.am)\.\w+JavaOptions$|app\.name$|yarn\.tags$)"
)
_KILLED = "Container killed on request"
"""Of a container that ended by SIGTERM: its node then kills what is left of the process group. It does no such thing
after an end by SIGKILL, or by itself: there the driver's Python outlives its JVM until it notices."""
_CONTAINER = re.compile(r"container_[A-Za-z0-9_]{1,100}")
_TAG = re.compile(r"[a-z][a-z0-9-]{0,30}-[0-9a-f]{32}")
_SUBMITTED = re.compile(r"application_[0-9]+_[0-9]+")


class YarnLauncher:
    """A ``Launcher`` for drivers on YARN, in cluster mode."""

    name = "yarn"
    default_master = "yarn"
    reaching: ClassVar[Collection[str]] = (
        *("hadoop_conf_dir", "resource_manager", "staging_dir"),
        *("user", "keytab", "principal"),
    )
    limits: ClassVar[Mapping[str, str]] = {
        "a_kill_ends_everything": "YARN signals the process group of a container: a child in a separate group"
        " outlives it where the cluster has no cgroups, and only the fence keeps it from the stream",
    }

    def __init__(self, clock: Clock, connect: Connect | None = None, environ: Mapping[str, str] | None = None) -> None:
        del connect  # YARN has no connection of its own in Airflow
        self._clock = clock
        self._environ = environ

    def check(self, request: LaunchRequest) -> None:
        """As ``Launcher.check``: what the submitter needs here, then the cluster, its queue and its largest node."""
        options = self._options(request.options)
        _, checked = self._checked(request, is_code_there=False)
        manager = self._manager(options)
        _check_queue(manager, options.queue)
        _check_memory(manager, checked)

    def spark_version(self, request: LaunchRequest) -> str:
        del request
        environ = self._inherited()
        return version_of(home_of(own_spark_submit(environ), environ))

    def launch(self, request: LaunchRequest) -> LaunchHandle:
        options = self._options(request.options)
        folder = LaunchFolder(Path(request.folder))
        _need_own_folder(folder, request.launch_key)
        submit, conf = self._checked(request, is_code_there=True)
        found = self._find(request.place, options)
        if found is not None:
            return found
        bundle = build_bundle(request, home_of(submit, self._inherited()))
        folder.prepare({"launch_key": request.launch_key, "launcher": self.name, "scope": request.scope})
        _need_own_folder(folder, request.launch_key)
        with _submitting(folder.path, self._clock) as lock:
            found = self._find(request.place, options)  # another call of this machine may have been first
            if found is None:
                found = self._submit(request, options, submit, _with_conf(bundle, conf, request), lock)
        return found

    def find(self, place: LaunchPlace) -> LaunchHandle | None:
        """As ``Launcher.find``. A submission that is under way on this machine cannot be found yet."""
        found = self._find(place, self._options(place.options))
        if found is None and _is_being_submitted(Path(place.folder)):
            raise UnavailableError(
                "this driver is being submitted just now", folder=place.folder, next_step="Ask again in a minute."
            )
        return found

    def handle_at(self, place: LaunchPlace, recorded: LaunchHandle) -> LaunchHandle:
        """As ``Launcher.handle_at``. Of the record only the application's id is taken, which has to have our tag.

        The configuration of the cluster may be elsewhere on another machine, so that its folder is not compared.
        """
        check_launch(place, recorded)
        options = self._options(place.options)
        application = id_in(place, recorded, "application_id", APPLICATION)
        if not application:
            raise untrusted(place, "application_id", "none", "the id of an application")
        found = self._handle(place, options, application, options.queue)
        check_same(place, recorded, {name: found.data[name] for name in ("tag", "user", "staging_dir")})
        named = recorded.data.get("resource_managers", list(options.addresses()))
        if not isinstance(named, list) or not any(address in named for address in options.addresses()):
            raise untrusted(place, "resource_managers", named, ", ".join(options.addresses()))
        return found

    def status(self, handle: LaunchHandle) -> LaunchStatus:
        try:
            return self._look(handle)
        except StreamStateError as error:
            return self._status("unknown", f"{error.message} ({error.context.get('reason', '')})".replace(" ()", ""))

    def kill(self, handle: LaunchHandle, grace_seconds: float) -> LaunchStatus:
        """As ``Launcher.kill``: SIGTERM to the driver's container, then the end of every application with the tag."""
        try:
            return self._kill(handle, grace_seconds)
        except StreamStateError as error:
            return replace(self.status(handle), reason=f"{error.message} ({error.context.get('reason', '')})")

    def logs(self, handle: LaunchHandle, tail_bytes: int) -> str:
        """As ``Launcher.logs``: of the driver's container while it is on its node, else of the aggregated logs."""
        try:
            manager, app = self._current(handle)
        except StreamStateError:
            return ""
        if app is None or tail_bytes <= 0:
            return ""
        try:
            place = manager.container_on_node(app)
        except UnavailableError:
            place = None
        if place is None:
            return ""
        found = next(filter(None, (place.log(name, tail_bytes) for name in _LOGS)), "")
        found = found or self._aggregated_logs(handle, app, place)
        return found.encode()[-tail_bytes:].decode("utf-8", "ignore")

    def links(self, handle: LaunchHandle) -> Mapping[str, str]:
        try:
            manager, app = self._current(handle)
        except StreamStateError:
            return {}
        if app is None:
            return {}
        found = {"YARN application": f"{manager.active}/cluster/app/{app['id']}"}
        tracking = text(app, "trackingUrl")
        if _host_of(tracking) in {*map(_host_of, manager.addresses), *self._proxies(handle)} - {""}:
            found["Spark UI"] = tracking
        return found

    def _proxies(self, handle: LaunchHandle) -> list[str]:
        """The host of YARN's web proxy, where it is not that of a ResourceManager."""
        try:
            site = read_site(Path(str(handle.data.get("hadoop_conf_dir") or "")))
        except StreamStateError:
            return []
        return [_host_of(f"http://{site.get('yarn.web-proxy.address', '')}")]

    def forget(self, handle: LaunchHandle) -> None:
        """As ``Launcher.forget``: the staging folders of its applications. YARN's own list forgets them by itself."""
        _, apps = self._applications(handle)
        if not apps or not self._look(handle).has_ended:
            return
        base = str(handle.data.get("staging_dir") or "")
        for app in apps:
            folder = f"{base or f'/user/{_user_of(app)}'}/.sparkStaging/{app['id']}"
            if base.startswith("file:"):
                _remove_local(Path(base.removeprefix("file://").removeprefix("file:")) / ".sparkStaging" / app["id"])
            else:
                self._run_class(handle, _FILE_SHELL, "-rm", "-r", "-f", "-skipTrash", folder)

    def _inherited(self) -> Mapping[str, str]:
        return os.environ if self._environ is None else self._environ

    def _options(self, raw: Mapping[str, object]) -> YarnOptions:
        return YarnOptions.from_options(raw, self._inherited())

    def _manager(self, options: YarnOptions) -> ResourceManager:
        return ResourceManager(options.addresses(), options.user, Until(self._clock, CALL_SECONDS))

    def _checked(self, request: LaunchRequest, *, is_code_there: bool) -> tuple[SparkSubmit, dict[str, str]]:
        """The submitter, and the configuration that YARN needs in addition to that of the request."""
        options = self._options(request.options)
        environ = self._inherited()
        if request.conn_id:
            raise InvalidRequestError(
                "YARN takes no Airflow connection",
                launcher_conn_id=request.conn_id,
                next_step="Leave it out, and name the cluster by the options hadoop_conf_dir or resource_manager.",
            )
        if request.master != self.default_master:
            raise InvalidRequestError(
                "this launcher starts drivers with YARN as their master",
                master=request.master,
                next_step="Leave the master out, or name another launcher.",
            )
        options.need_conf_dir()
        options.need_files("" if is_code_there else request.folder)
        submit = own_spark_submit(environ)
        check_java(environ, submit.spark_home)
        checked = check_remote(request, home_of(submit, environ), is_code_there=is_code_there)
        where = "the script that starts the container, and into its logs"
        check_shown(checked.conf, request.driver_config.get("secrets"), _SHOWN, where)
        ours = options.conf(tag_of(request.place, options.tag_prefix), _shown_name(request))
        return submit, {**ours, **checked.conf, **{name: ours[name] for name in (TAGS, *MUST)}}

    def _find(self, place: LaunchPlace, options: YarnOptions) -> LaunchHandle | None:
        manager = ResourceManager(options.addresses(), options.user, Until(self._clock, FIND_SECONDS))
        tag = tag_of(place, options.tag_prefix)
        apps = manager.applications(tag)
        for _ in range(ASK_AGAIN_TIMES):
            if apps or manager.age_seconds() > YOUNG_SECONDS:
                break
            # After its restart a ResourceManager lists nothing for a moment: that is no proof.
            self._clock.sleep(ASK_AGAIN_SECONDS)
            apps = manager.applications(tag)
        if apps:
            return self._handle(place, options, apps[0]["id"], text(apps[0], "queue") or options.queue)
        recorded = _recorded(Path(place.folder), place.launch_key)
        return None if recorded is None else self.handle_at(place, recorded)

    def _handle(self, place: LaunchPlace, options: YarnOptions, application: str, queue: str) -> LaunchHandle:
        data = {
            "application_id": application,
            "tag": tag_of(place, options.tag_prefix),
            "resource_managers": list(options.addresses()),
            "queue": queue,
            "user": options.user,
            "hadoop_conf_dir": options.hadoop_conf_dir,
            "staging_dir": options.staging_dir,
        }
        return LaunchHandle(self.name, place.launch_key, data)

    def _submit(
        self, request: LaunchRequest, options: YarnOptions, submit: SparkSubmit, bundle: DriverBundle, lock: int
    ) -> LaunchHandle:
        folder = Path(request.folder)
        work = folder / "submit"
        secrets = secrets_of(bundle.conf, request.arguments, request.environment)
        try:
            _write_bundle(work, bundle)
            code = self._run_submit(options, submit, _arguments(request, bundle, options), work, lock)
        finally:
            _remove_local(work)  # holds secrets
        said = redact_text(tail_bytes(folder / _SUBMIT_LOG, 65_536).decode("utf-8", "replace"), secrets)
        try:
            found = self._find(request.place, options)
        except UnavailableError as error:
            raise OutcomeUnknownError(
                "the driver was submitted, but the ResourceManager does not list it",
                reason=str(error.context["reason"]),
            ) from None
        if found is None and (submitted := _SUBMITTED.search(said)) and code == 0:
            found = self._handle(request.place, options, submitted[0], options.queue)
        if found is None:
            raise _submit_failed(code, said, folder / _SUBMIT_LOG)
        with contextlib.suppress(StreamStateError):
            write_file(folder / RECORD, handle_bytes(found))
        return found

    def _run_submit(
        self, options: YarnOptions, submit: SparkSubmit, arguments: Sequence[str], work: Path, lock: int
    ) -> int | None:
        """The exit status of spark-submit; None where it took too long and was ended."""
        with open(work.parent / _SUBMIT_LOG, "wb", opener=_owner_only) as log:
            process = subprocess.Popen(
                [*submit.prefix, *arguments],
                cwd=work,
                env=self._environment(options, submit),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(lock,),  # where this caller dies, the next one waits until this submission has ended
            )
        until = self._clock.monotonic_seconds() + SUBMIT_SECONDS
        while process.poll() is None:
            if self._clock.monotonic_seconds() > until:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return None
            self._clock.sleep(0.1)
        return process.returncode

    def _environment(self, options: YarnOptions, submit: SparkSubmit) -> dict[str, str]:
        # A Python of this machine means nothing on the nodes, and Spark would pass it on.
        inherited = without_signing_key(self._inherited())
        kept = {name: value for name, value in inherited.items() if not name.startswith("PYSPARK_")}
        return {
            **kept,
            **submit.environment,
            "HADOOP_CONF_DIR": options.hadoop_conf_dir,
            "YARN_CONF_DIR": options.hadoop_conf_dir,
            **({"HADOOP_USER_NAME": options.user} if options.user else {}),
        }

    def _applications(self, handle: LaunchHandle) -> tuple[ResourceManager, list[dict[str, Any]]]:
        addresses, tag, application, user = _asked(handle)
        manager = ResourceManager(addresses, user, Until(self._clock, CALL_SECONDS))
        apps = manager.applications(tag)
        if not apps:
            one = manager.application(application)
            if one is not None and tag not in text(one, "applicationTags").split(","):
                raise UnavailableError("the application that its record names is that of another launch")
            apps = [] if one is None else [one]
        return manager, apps

    def _current(self, handle: LaunchHandle) -> tuple[ResourceManager, dict[str, Any] | None]:
        manager, apps = self._applications(handle)
        return manager, the_one(apps)

    def _look(self, handle: LaunchHandle) -> LaunchStatus:
        manager, app = self._current(handle)
        if app is None:
            is_old = manager.age_seconds() > YOUNG_SECONDS
            words = "the ResourceManager does not know it any more" if is_old else "the ResourceManager has restarted"
            return self._status("unknown", words, reported_end=is_old)
        attempt = manager.last_attempt(app["id"])
        state, told = text(app, "state"), text(app, "diagnostics")
        diagnostics = _words(told)
        if state not in ENDED:
            if attempt.get("appAttemptState") in ("LAUNCHED", "RUNNING", "FINAL_SAVING", "FINISHING", "FINISHED"):
                return self._status("running", "")
            words = f"it waits in queue {shown(app.get('queue'))}: {diagnostics or shown(state).lower()}"
            return self._status("pending", words)
        code = _exit_code(app)
        if code is not None:
            if attempt.get("appAttemptState") == "FINISHING":
                return self._status("running", "it is coming to its end")
            return self._status("exited", "it ended by itself" if code == 0 else exit_sentence(code), code)
        reason = f"YARN reports it as {shown(state).lower()}: {diagnostics or 'without a reason'}"
        if state == "KILLED" and not attempt.get("containerId"):
            return self._status("gone", f"{reason}; no container was ever started for it")
        place = manager.container_on_node(app) if state == "KILLED" or _KILLED in told else None
        if place is not None and place.is_over(app):
            return self._status("gone", f"{reason}; its node reports that its container has ended")
        return self._status("unknown", f"{reason}; that its processes have ended is not proven", reported_end=True)

    def _kill(self, handle: LaunchHandle, grace_seconds: float) -> LaunchStatus:
        manager, apps = self._applications(handle)
        running = [app for app in apps if app["state"] not in ENDED]
        if running and grace_seconds > 0 and self.status(handle).state == "running":
            for app in running:
                container = text(manager.last_attempt(app["id"]), "containerId")
                if _CONTAINER.fullmatch(container):
                    manager.send("POST", f"containers/{container}/signal/GRACEFUL_SHUTDOWN")
            self._until(lambda: self._all_ended(handle), grace_seconds)
        manager, apps = self._applications(handle)
        for app in apps:
            if app["state"] not in ENDED:
                manager.send("PUT", f"apps/{app['id']}/state", {"state": "KILLED"})
        if running:
            self._until(lambda: self._is_settled(handle), KILL_SECONDS)
        return self.status(handle)

    def _all_ended(self, handle: LaunchHandle) -> bool:
        return all(app["state"] in ENDED for app in self._applications(handle)[1])

    def _is_settled(self, handle: LaunchHandle) -> bool:
        """Whether waiting longer shows no more about how the driver has ended."""
        status = self.status(handle)
        if status.has_ended:
            return True
        _, app = self._current(handle)
        if app is None or app["state"] not in ("FINISHED", "FAILED"):
            return False
        return _KILLED not in text(app, "diagnostics")

    def _until(self, is_so: Callable[[], bool], seconds: float) -> None:
        until = self._clock.monotonic_seconds() + seconds
        while not is_so() and self._clock.monotonic_seconds() < until:
            self._clock.sleep(POLL_SECONDS)

    def _status(
        self, state: LaunchState, reason: str, exit_code: int | None = None, *, reported_end: bool = False
    ) -> LaunchStatus:
        return LaunchStatus(state, exit_code, reason, self._clock.now(), reported_end)

    def _aggregated_logs(self, handle: LaunchHandle, app: Mapping[str, Any], place: ContainerOnNode) -> str:
        try:
            site = read_site(Path(str(handle.data.get("hadoop_conf_dir") or "")))
            below = f"{site.get('yarn.nodemanager.remote-app-log-dir', _APP_LOGS)}/{_user_of(app)}"
        except StreamStateError:
            return ""
        node = place.node_id.replace(":", "_")
        kept = self._run_class(handle, _FILE_SHELL, "-cat", f"{below}/bucket-*-tfile/*/{app['id']}/{node}")
        found = (log_in(kept, place.container, name) for name in _LOGS)
        return next(filter(None, found), b"").decode("utf-8", "replace")

    def _run_class(self, handle: LaunchHandle, name: str, *arguments: str) -> bytes:
        """The output of a program of the Hadoop client that Spark brings; b"" where it fails."""
        environ = self._inherited()
        submit = own_spark_submit(environ)
        options = YarnOptions.from_options(
            {key: handle.data[key] for key in ("hadoop_conf_dir", "user") if handle.data.get(key)}, environ
        )
        program = Path(submit.prefix[0]).with_name("spark-class")
        argv = (str(program), name, *arguments)
        return output_of(argv, self._environment(options, submit), CLASS_SECONDS, AGGREGATED_BYTES)


def _asked(handle: LaunchHandle) -> tuple[tuple[str, ...], str, str, str]:
    """Addresses, tag, application and user of a handle.

    Raises:
        MalformedMessageError: it names no application of YARN.
    """
    data = handle.data
    addresses, user = data.get("resource_managers"), data.get("user") or ""
    tag, application = data.get("tag"), data.get("application_id")
    if (
        handle.launcher == YarnLauncher.name
        and isinstance(addresses, list | tuple)
        and isinstance(user, str)
        and isinstance(tag, str)
        and _TAG.fullmatch(tag)
        and isinstance(application, str)
        and is_application(application)
    ):
        return need_addresses([str(one) for one in addresses]), tag, application, user
    raise MalformedMessageError("this handle names no application of YARN", launch_key=handle.launch_key)


def _host_of(url: str) -> str:
    """The host of a web address; "" for anything else."""
    try:
        parts = urlsplit(url)
        return (parts.hostname or "") if parts.scheme in ("http", "https") and url.isprintable() else ""
    except ValueError:
        return ""


def tag_of(place: LaunchPlace, prefix: str) -> str:
    """The tag of a driver: the same on every machine, of one stream only, lower-case as YARN wants it."""
    named = f"{place.scope}\n{place.launch_key}"
    return f"{prefix}-{hashlib.sha256(named.encode()).hexdigest()[:32]}"


def _shown_name(request: LaunchRequest) -> str:
    """The human-readable name of the application: the stream and the launch key."""
    return f"{request.scope.rpartition('/')[2] or Path(request.application).name} {request.launch_key}"


def the_one(apps: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The application that is the driver: not one that lost its claim, if there is another; None without any."""
    others = [app for app in apps if _exit_code(app) != LOST_CLAIM] or list(apps)
    alive = [app for app in others if app["state"] not in ENDED]
    # Where one of several has ended without proof, that one may be the driver that still works.
    unproven = [app for app in others if _exit_code(app) is None]
    return next(iter(alive or unproven or others), None)


def _exit_code(app: Mapping[str, Any]) -> int | None:
    """The exit status of the driver's program, which YARN has as text only; None where it does not report it."""
    if app["state"] not in ("FINISHED", "FAILED"):
        return None
    if app.get("finalStatus") == "SUCCEEDED":
        return 0
    told = text(app, "diagnostics")
    match = _WITH_STATUS.search(told)
    if match is None and _WITHOUT_SESSION in told:
        return 0  # the program came to its end, but for Spark one without a session has failed
    return int(match[1]) if match else None


def _arguments(request: LaunchRequest, bundle: DriverBundle, options: YarnOptions) -> list[str]:
    """Of spark-submit in the folder of the bundle; no secret among them."""
    if request.attaches and secrets_of({}, request.arguments):
        raise InvalidRequestError(
            "an argument of this script is a secret, and YARN shows the arguments of a script that attaches",
            next_step="Deploy it without --attach, or give the secret by a variable of the environment.",
        )
    words = list(bundle.submit_arguments)
    words[words.index("--deploy-mode") + 1] = "cluster"
    if not request.attaches:
        words[-1] = f"{UNPACKED}/{DRIVER_CONFIG}"
    archives = [f"{_BUNDLE}#{UNPACKED}"]
    if options.python_env:
        archives.append(f"{options.python_env}#{ENVIRONMENT}")
    return ["--archives", ",".join(archives), *words]


def _write_bundle(work: Path, bundle: DriverBundle) -> None:
    """The files of a bundle as spark-submit gets them: driver.json and the code in one archive."""
    _remove_local(work)
    travelling = {
        name: body for name, body in bundle.files.items() if name == DRIVER_CONFIG or name.startswith(f"{CODE}/")
    }
    files = {name: body for name, body in bundle.files.items() if name != DRIVER_CONFIG}
    work.mkdir(mode=0o700)
    for name, body in {**files, _BUNDLE: zip_bytes(travelling.items())}.items():
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        write_file(work / name, body)


def _with_conf(bundle: DriverBundle, ours: Mapping[str, str], request: LaunchRequest) -> DriverBundle:
    """The bundle with what YARN needs in its configuration; a value of the request wins but for what must be so."""
    conf = {**ours, **bundle.conf}
    if "spark.app.name" not in request.conf and ours.get("spark.app.name"):
        conf["spark.app.name"] = ours["spark.app.name"]
    tags = [*filter(None, request.conf.get(TAGS, "").split(",")), ours[TAGS]]
    conf |= {TAGS: ",".join(tags), **{name: ours[name] for name in MUST if name in ours}}
    if request.attaches:
        conf[f"spark.yarn.appMasterEnv.{DRIVER_VARIABLE}"] = f"{UNPACKED}/{DRIVER_CONFIG}"
    return bundle.with_conf(conf)


def _submit_failed(code: int | None, said: str, log: Path) -> StreamStateError:
    if code is None:
        return OutcomeUnknownError(
            "spark-submit did not end",
            seconds=SUBMIT_SECONDS,
            log=str(log),
            next_step="Do the same again: it finds the application if there is one.",
        )
    lines = [line for line in said.splitlines() if re.search(r"Exception|Error|rror:", line)]
    reason = (lines or said.strip().splitlines() or ["it printed nothing"])[0][-400:].strip()
    if re.search(r"Connection refused|ConnectException|NoRouteToHost|SocketTimeout|Standby", said):
        return UnavailableError("spark-submit did not reach the cluster", reason=reason, log=str(log))
    return InvalidRequestError(
        "spark-submit did not submit the driver",
        status=code,
        reason=reason,
        log=str(log),
        next_step="Fix what it names, then do the same again.",
    )


def _need_own_folder(folder: LaunchFolder, launch_key: str) -> None:
    with translated(folder.path):
        facts = folder.intent()
    if facts is not None and facts.get("launch_key") != launch_key:
        raise ConflictError(
            "this folder belongs to another launch",
            folder=str(folder.path),
            launch_key=str(facts.get("launch_key")),
            next_step="Use a separate folder for each launch key.",
        )


def _recorded(folder: Path, launch_key: str) -> LaunchHandle | None:
    """The handle that a launch on this machine has recorded; None if it has recorded none."""
    try:
        found = LaunchHandle.from_json(json.loads((folder / RECORD).read_bytes()))
    except (OSError, ValueError, MalformedMessageError):
        return None
    return found if found.launch_key == launch_key else None


def handle_bytes(handle: LaunchHandle) -> bytes:
    return json.dumps(handle.to_json(), indent=1, sort_keys=True).encode() + b"\n"


@contextlib.contextmanager
def _submitting(folder: Path, clock: Clock) -> Iterator[int]:
    """Hold the lock of a launch on this machine; a process that inherits the descriptor holds it, too."""
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        until = clock.monotonic_seconds() + 2 * SUBMIT_SECONDS
        while not _locked(descriptor):
            if clock.monotonic_seconds() > until:
                raise UnavailableError("another call is still submitting this driver", folder=str(folder))
            clock.sleep(0.1)
        yield descriptor
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_being_submitted(folder: Path) -> bool:
    try:
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _locked(descriptor)
    finally:
        os.close(descriptor)


def _remove_local(folder: Path) -> None:
    with translated(folder), contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)


def _owner_only(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _words(diagnostics: str) -> str:
    """What YARN reports of an application, in a line: its ApplicationMaster's reason, if it had time to give one."""
    found = _REASON.search(diagnostics)
    how = _EXIT.search(diagnostics)
    return shown(found[1] if found else f"its container exited with {how[1]}" if how else diagnostics)


def _user_of(app: Mapping[str, Any]) -> str:
    """The user of an application, whose name is part of paths.

    Raises:
        UnavailableError: it has none that could be.
    """
    user = text(app, "user")
    if not _USER.fullmatch(user):
        raise UnavailableError("the cluster names an impossible user", application=app["id"], reason=shown(user))
    return user


def _check_queue(manager: ResourceManager, queue: str) -> None:
    scheduler = manager.get("scheduler", at_most=LISTING_BYTES).get("scheduler")
    info = scheduler.get("schedulerInfo") if isinstance(scheduler, dict) else None
    if not isinstance(info, dict) or info.get("type") != "capacityScheduler" or not queue:
        return
    leaves = {text(one, "queuePath") or text(one, "queueName"): one for one in _leaves(info)}
    found = [one for path, one in leaves.items() if queue in (path, path.rpartition(".")[2], one.get("queueName"))]
    if not found:
        raise InvalidRequestError(
            "the cluster has no such queue that takes applications",
            queue=queue,
            queues=shown(", ".join(sorted(leaves))),
            next_step="Name one of these: --launcher-option queue=QUEUE.",
        )
    if found[0].get("state", "RUNNING") != "RUNNING":
        raise UnavailableError(
            "this queue takes no applications now",
            queue=queue,
            reason=f"it is {shown(found[0]['state']).lower()}",
            next_step="Name another queue, or let the cluster's administrator start it.",
        )


def _leaves(queue: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for one in objects_in(queue, "queues", "queue"):
        yield from _leaves(one) if objects_in(one, "queues", "queue") else (one,)


def _check_memory(manager: ResourceManager, conf: Mapping[str, str]) -> None:
    """Refuse a driver that no node of the cluster has the memory for, however long it waits."""
    listed = objects_in(manager.get("nodes", at_most=LISTING_BYTES), "nodes", "node")
    nodes = [node for node in listed if node.get("state") in ("RUNNING", "UNHEALTHY")]
    if not nodes:
        raise UnavailableError(
            "the cluster has no node that runs",
            reason=f"{manager.active} lists none",
            next_step="Start a NodeManager, then do the same again.",
        )
    largest = int(max(number(node, "availMemoryMB") + number(node, "usedMemoryMB") for node in nodes))
    wanted = driver_megabytes(conf)
    if wanted > largest:
        raise InvalidRequestError(
            "no node of the cluster has as much memory as this driver asks for",
            driver_mb=wanted,
            largest_node_mb=largest,
            next_step="Ask for less: --conf spark.driver.memory=… or spark.driver.memoryOverhead=….",
        )


def driver_megabytes(conf: Mapping[str, str]) -> int:
    """What the container of a driver needs: its heap and its overhead, as Spark reckons them; 0 if unknown."""
    heap = megabytes(conf.get("spark.driver.memory", "1g"))
    beside = megabytes(conf.get("spark.driver.memoryOverhead", "0"))
    return heap + (beside or max(384, heap // 10))


def megabytes(text: str) -> int:
    """A size as Spark writes it, in whole MiB; without a unit it is MiB. 0 for what is none."""
    match = re.fullmatch(r"\s*([0-9]+)\s*([kmgt]?)i?b?\s*", text.lower())
    if not match:
        return 0
    return int(int(match[1]) * {"k": 1 / 1024, "": 1, "m": 1, "g": 1024, "t": 1024 * 1024}[match[2]])
