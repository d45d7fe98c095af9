"""Drivers as applications of a YARN cluster: ``spark-submit --deploy-mode cluster`` from the caller's machine.

YARN takes a tag, but runs two applications with one tag. So a driver is all applications with its tag: ``launch`` looks
for them before it submits one, and where two controllers on two machines submit at the same moment, the claim in the
home ends one of the two before its first batch (exit status 4), which is not told where another has the tag.

What travels: runtime, py-files, files and jars by spark-submit's own options, so that files have their base names in
the container's folder; ``driver.json`` and the code as one archive, unpacked beside them. Secrets stand in that archive
and in the properties file, which the submitter's machine, the staging folder and the container each show to their owner
only.
"""

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
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
from airflow_streamstate.launch.bundle import CODE, DriverBundle, build_bundle
from airflow_streamstate.launch.command import (
    DRIVER_CONFIG,
    DRIVER_VARIABLE,
    PROPERTIES,
    check_remote,
    check_shown,
    format_properties,
)
from airflow_streamstate.launch.driver_zip import zip_bytes
from airflow_streamstate.launch.folder import LaunchFolder, tail_bytes, translated, write_file
from airflow_streamstate.launch.interface import (
    Connect,
    LaunchHandle,
    LaunchPlace,
    LaunchRequest,
    LaunchState,
    LaunchStatus,
)
from airflow_streamstate.launch.processes import exit_sentence
from airflow_streamstate.launch.spark_home import SparkSubmit, check_java, home_of, own_spark_submit, version_of
from airflow_streamstate.launch.yarn.logs import log_in
from airflow_streamstate.launch.yarn.options import MUST, TAGS, YarnOptions
from airflow_streamstate.launch.yarn.resource_manager import YOUNG_SECONDS, ResourceManager, ask, read_site
from airflow_streamstate.protocol.redaction import redact_text, secrets_of
from airflow_streamstate.protocol.signing import without_signing_key

UNPACKED = "streamstate"
"""The folder of driver.json and the code, below the container's own."""
ENVIRONMENT = "env"
"""The folder of an unpacked python_env."""
SUBMIT_SECONDS = 300.0
ASK_AGAIN_SECONDS = 2.0
ASK_AGAIN_TIMES = 15
KILL_SECONDS = 40.0
POLL_SECONDS = 0.5
SETTLE_SECONDS = 3.0
"""A NodeManager tells a container as done a quarter of a second before it sends the last SIGKILL."""
LOST_CLAIM = 4
_CLASS_SECONDS = 120.0
_FILE_SHELL = "org.apache.hadoop.fs.FsShell"
_LOGS = ("stdout", "stderr")
"""The driver's own words come first; without any, those of the JVM."""
RECORD = "yarn.json"
"""The handle, in the folder of the launch."""
_BUNDLE = "bundle.zip"
_CONTAINER_LOGS = re.compile(r"(?P<node>https?://[^/]+)/node/containerlogs/(?P<container>container_\w+)/")
_LOCK = "submit.lock"
_SUBMIT_LOG = "submit.log"
_ENDED = ("FINISHED", "FAILED", "KILLED")
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
_SUBMITTED = re.compile(r"application_[0-9]+_[0-9]+")
_CONTENTS = re.compile(r"^LogContents:\n(.*?)\n?(?:^End of LogType:[^\n]*\n?)", re.MULTILINE | re.DOTALL)


class YarnLauncher:
    """A ``Launcher`` for drivers on YARN, in cluster mode."""

    name = "yarn"
    default_master = "yarn"
    limits: ClassVar[Mapping[str, str]] = {
        "a_kill_ends_everything": "YARN signals the process group of a container: a child in a group of its own"
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
        """As ``Launcher.find``. A submission that is under way on this machine cannot be told yet."""
        found = self._find(place, self._options(place.options))
        if found is None and _is_being_submitted(Path(place.folder)):
            raise UnavailableError(
                "this driver is being submitted just now", folder=place.folder, next_step="Ask again in a minute."
            )
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
        text = _node_logs(app, tail_bytes) or self._aggregated_logs(handle, manager, app)
        return text.encode()[-tail_bytes:].decode("utf-8", "ignore")

    def links(self, handle: LaunchHandle) -> Mapping[str, str]:
        try:
            manager, app = self._current(handle)
        except StreamStateError:
            return {}
        if app is None:
            return {}
        found = {"YARN application": f"{manager.active}/cluster/app/{app['id']}"}
        tracking = str(app.get("trackingUrl") or "")
        if tracking.startswith(("http://", "https://")):
            found["Spark UI"] = tracking
        return found

    def forget(self, handle: LaunchHandle) -> None:
        """As ``Launcher.forget``: the staging folders of its applications. YARN's own list forgets them by itself."""
        _, apps = self._applications(handle)
        if not apps or not self._look(handle).has_ended:
            return
        base = str(handle.data.get("staging_dir") or "")
        for app in apps:
            folder = f"{base}/.sparkStaging/{app['id']}" if base else f"/user/{app['user']}/.sparkStaging/{app['id']}"
            if base.startswith("file:"):
                _remove_local(Path(base.removeprefix("file://").removeprefix("file:")) / ".sparkStaging" / app["id"])
            else:
                self._run_class(handle, _FILE_SHELL, "-rm", "-r", "-f", "-skipTrash", folder)

    def _inherited(self) -> Mapping[str, str]:
        return os.environ if self._environ is None else self._environ

    def _options(self, raw: Mapping[str, object]) -> YarnOptions:
        return YarnOptions.from_options(raw, self._inherited())

    def _manager(self, options: YarnOptions) -> ResourceManager:
        return ResourceManager(options.addresses(), options.user)

    def _checked(self, request: LaunchRequest, *, is_code_there: bool) -> tuple[SparkSubmit, dict[str, str]]:
        """The submitter, and the configuration that YARN needs beside that of the request."""
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
        manager = self._manager(options)
        tag = tag_of(place, options.tag_prefix)
        apps = manager.applications(tag)
        for _ in range(ASK_AGAIN_TIMES):
            if apps or manager.age_seconds() > YOUNG_SECONDS:
                break
            # After its restart a ResourceManager lists nothing for a moment: that is no proof.
            self._clock.sleep(ASK_AGAIN_SECONDS)
            apps = manager.applications(tag)
        if apps:
            return self._handle(place, options, apps[0]["id"], apps[0].get("queue") or options.queue)
        return _recorded(Path(place.folder), place.launch_key)

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
                "the driver was submitted, but the ResourceManager does not tell", reason=str(error.context["reason"])
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
                pass_fds=(lock,),  # where this caller dies, the next one waits until this submission is over
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
        data = handle.data
        addresses = [str(one) for one in data.get("resource_managers", ())]  # type: ignore[attr-defined]
        manager = ResourceManager(addresses, str(data.get("user") or ""))
        apps = manager.applications(str(data["tag"]))
        if not apps:
            one = manager.get(f"apps/{data['application_id']}").get("app")
            apps = [one] if one else []
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
        state, told = str(app["state"]), str(app.get("diagnostics") or "")
        diagnostics = _words(told)
        if state not in _ENDED:
            if attempt.get("appAttemptState") in ("LAUNCHED", "RUNNING", "FINAL_SAVING", "FINISHING", "FINISHED"):
                return self._status("running", "")
            return self._status("pending", f"it waits in queue {app.get('queue')}: {diagnostics or state.lower()}")
        code = _exit_code(app)
        if code is not None:
            if attempt.get("appAttemptState") == "FINISHING":
                return self._status("running", "it is coming to its end")
            return self._status("exited", "it ended by itself" if code == 0 else exit_sentence(code), code)
        reason = f"YARN tells it as {state.lower()}: {diagnostics or 'without a reason'}"
        if state == "KILLED" and not attempt.get("containerId"):
            return self._status("gone", f"{reason}; no container was ever started for it")
        if (state == "KILLED" or _KILLED in told) and _is_container_over(app):
            return self._status("gone", f"{reason}; its node says that its container is over")
        return self._status("unknown", f"{reason}; that its processes have ended is not proven", reported_end=True)

    def _kill(self, handle: LaunchHandle, grace_seconds: float) -> LaunchStatus:
        manager, apps = self._applications(handle)
        running = [app for app in apps if app["state"] not in _ENDED]
        if running and grace_seconds > 0 and self.status(handle).state == "running":
            for app in running:
                container = manager.last_attempt(app["id"]).get("containerId")
                if container:
                    manager.send("POST", f"containers/{container}/signal/GRACEFUL_SHUTDOWN")
            self._until(lambda: self._all_ended(handle), grace_seconds)
        for app in self._applications(handle)[1]:
            if app["state"] not in _ENDED:
                manager.send("PUT", f"apps/{app['id']}/state", {"state": "KILLED"})
        if running:
            self._until(lambda: self._is_settled(handle), KILL_SECONDS)
        return self.status(handle)

    def _all_ended(self, handle: LaunchHandle) -> bool:
        return all(app["state"] in _ENDED for app in self._applications(handle)[1])

    def _is_settled(self, handle: LaunchHandle) -> bool:
        """Whether more time tells no more of how the driver has ended."""
        status = self.status(handle)
        if status.has_ended:
            return True
        _, app = self._current(handle)
        if app is None or app["state"] not in ("FINISHED", "FAILED"):
            return False
        return _KILLED not in str(app.get("diagnostics") or "")

    def _until(self, is_so: Callable[[], bool], seconds: float) -> None:
        until = self._clock.monotonic_seconds() + seconds
        while not is_so() and self._clock.monotonic_seconds() < until:
            self._clock.sleep(POLL_SECONDS)

    def _status(
        self, state: LaunchState, reason: str, exit_code: int | None = None, *, reported_end: bool = False
    ) -> LaunchStatus:
        return LaunchStatus(state, exit_code, reason, self._clock.now(), reported_end)

    def _aggregated_logs(self, handle: LaunchHandle, manager: ResourceManager, app: Mapping[str, Any]) -> str:
        place = _CONTAINER_LOGS.match(str(app.get("amContainerLogs") or ""))
        try:
            node = str(manager.last_attempt(app["id"]).get("nodeId") or "").replace(":", "_")
            site = read_site(Path(str(handle.data.get("hadoop_conf_dir") or "")))
        except StreamStateError:
            return ""
        if place is None or not node:
            return ""
        top = site.get("yarn.nodemanager.remote-app-log-dir", "/tmp/logs")  # noqa: S108 - YARN's own default
        below = f"{top}/{app['user']}"
        kept = self._run_class(handle, _FILE_SHELL, "-cat", f"{below}/bucket-*-tfile/*/{app['id']}/{node}")
        found = (log_in(kept, place["container"], name) for name in _LOGS)
        return next(filter(None, found), b"").decode("utf-8", "replace")

    def _run_class(self, handle: LaunchHandle, name: str, *arguments: str) -> bytes:
        """The output of a program of the Hadoop client that Spark brings; b"" where it fails."""
        environ = self._inherited()
        submit = own_spark_submit(environ)
        options = YarnOptions.from_options(
            {key: handle.data[key] for key in ("hadoop_conf_dir", "user") if handle.data.get(key)}, environ
        )
        program = Path(submit.prefix[0]).with_name("spark-class")
        try:
            done = subprocess.run(
                [str(program), name, *arguments],
                env=self._environment(options, submit),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_CLASS_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return b""
        return done.stdout if done.returncode == 0 else b""


def tag_of(place: LaunchPlace, prefix: str) -> str:
    """The tag of a driver: the same on every machine, of one stream only, lower-case as YARN wants it."""
    named = f"{place.scope}\n{place.launch_key}"
    return f"{prefix}-{hashlib.sha256(named.encode()).hexdigest()[:32]}"


def _shown_name(request: LaunchRequest) -> str:
    """The name of the application for people: the stream and the launch key."""
    return f"{request.scope.rpartition('/')[2] or Path(request.application).name} {request.launch_key}"


def the_one(apps: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The application that is the driver: not one that lost its claim, where there is another; None for none."""
    others = [app for app in apps if _exit_code(app) != LOST_CLAIM] or list(apps)
    alive = [app for app in others if app["state"] not in _ENDED]
    # Where one of several has ended without proof, that one may be the driver that still works.
    unproven = [app for app in others if _exit_code(app) is None]
    return next(iter(alive or unproven or others), None)


def _exit_code(app: Mapping[str, Any]) -> int | None:
    """The exit status of the driver's program, which YARN has as text only; None where it does not tell."""
    if app["state"] not in ("FINISHED", "FAILED"):
        return None
    if app.get("finalStatus") == "SUCCEEDED":
        return 0
    told = str(app.get("diagnostics") or "")
    match = _WITH_STATUS.search(told)
    if match is None and _WITHOUT_SESSION in told:
        return 0  # the program came to its end, but for Spark one without a session has failed
    return int(match[1]) if match else None


def _exit_words(code: int) -> str:
    return exit_sentence(code)


def _is_container_over(app: Mapping[str, Any]) -> bool:
    """Whether the node proves that the driver's container is over: it has been told to kill it, and has.

    A NodeManager that was started after the application knows nothing of its containers.
    """
    place = _CONTAINER_LOGS.match(str(app.get("amContainerLogs") or ""))
    if place is None:
        return False
    try:
        node = ask("GET", f"{place['node']}/ws/v1/node/info")
        info = node.json.get("nodeInfo") or {}
        container = ask("GET", f"{place['node']}/ws/v1/node/containers/{place['container']}")
    except UnavailableError:
        return False
    if node.status != 200 or not 0 < int(info.get("nmStartupTime") or 0) < int(app["startedTime"]):
        return False
    is_done = container.status == 404 or (container.json.get("container") or {}).get("state") in ("DONE", "COMPLETE")
    return is_done and node.seconds - int(app["finishedTime"]) / 1000 > SETTLE_SECONDS


def _node_logs(app: Mapping[str, Any], count: int) -> str:
    place = _CONTAINER_LOGS.match(str(app.get("amContainerLogs") or ""))
    if place is None:
        return ""
    for name in _LOGS:
        url = f"{place['node']}/ws/v1/node/containerlogs/{place['container']}/{name}?size={-count}"
        try:
            answer = ask("GET", url)
        except UnavailableError:
            return ""
        found = _contents(answer.body.decode("utf-8", "replace")) if answer.status == 200 else ""
        if found:
            return found
    return ""


def _contents(told: str) -> str:
    """The log in what YARN tells of it, without its head and foot."""
    return "".join(match[1] for match in _CONTENTS.finditer(told))


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
    return replace(bundle, conf=conf, files={**bundle.files, PROPERTIES: format_properties(conf)})


def _submit_failed(code: int | None, said: str, log: Path) -> StreamStateError:
    if code is None:
        return OutcomeUnknownError(
            "spark-submit did not come to its end",
            seconds=SUBMIT_SECONDS,
            log=str(log),
            next_step="Do the same again: it finds the application if there is one.",
        )
    lines = [line for line in said.splitlines() if re.search(r"Exception|Error|rror:", line)]
    reason = (lines or said.strip().splitlines() or ["it said nothing"])[0][-400:].strip()
    if re.search(r"Connection refused|ConnectException|NoRouteToHost|SocketTimeout|Standby", said):
        return UnavailableError("spark-submit did not reach the cluster", reason=reason, log=str(log))
    return InvalidRequestError(
        "spark-submit did not submit the driver",
        status=code,
        reason=reason,
        log=str(log),
        next_step="Mend what it names, then do the same again.",
    )


def _need_own_folder(folder: LaunchFolder, launch_key: str) -> None:
    with translated(folder.path):
        facts = folder.intent()
    if facts is not None and facts.get("launch_key") != launch_key:
        raise ConflictError(
            "this folder belongs to another launch",
            folder=str(folder.path),
            launch_key=str(facts.get("launch_key")),
            next_step="Use a folder of its own for each launch key.",
        )


def _recorded(folder: Path, launch_key: str) -> LaunchHandle | None:
    """The handle that a launch on this machine has recorded; None for none."""
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
    """What YARN tells of an application, in a line: the ApplicationMaster's own reason, if it had time to give one."""
    found = _REASON.search(diagnostics)
    how = _EXIT.search(diagnostics)
    said = found[1] if found else f"its container exited with {how[1]}" if how else diagnostics
    return " ".join(said.split())[:300]


def _check_queue(manager: ResourceManager, queue: str) -> None:
    info = (manager.get("scheduler").get("scheduler") or {}).get("schedulerInfo") or {}
    if info.get("type") != "capacityScheduler" or not queue:
        return
    leaves = {one["queuePath"] if "queuePath" in one else one["queueName"]: one for one in _leaves(info)}
    found = [one for path, one in leaves.items() if queue in (path, path.rpartition(".")[2], one["queueName"])]
    if not found:
        raise InvalidRequestError(
            "the cluster has no such queue that takes applications",
            queue=queue,
            queues=", ".join(sorted(leaves)),
            next_step="Name one of these: --launcher-option queue=QUEUE.",
        )
    if found[0].get("state", "RUNNING") != "RUNNING":
        raise UnavailableError(
            "this queue takes no applications now",
            queue=queue,
            reason=f"it is {str(found[0]['state']).lower()}",
            next_step="Name another queue, or let the cluster's administrator start it.",
        )


def _leaves(queue: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    below = (queue.get("queues") or {}).get("queue") or []
    for one in below:
        yield from _leaves(one) if (one.get("queues") or {}).get("queue") else (one,)


def _check_memory(manager: ResourceManager, conf: Mapping[str, str]) -> None:
    """Refuse a driver that no node of the cluster has the memory for, however long it waits."""
    nodes = [
        node
        for node in (manager.get("nodes").get("nodes") or {}).get("node") or []
        if node.get("state") in ("RUNNING", "UNHEALTHY")
    ]
    if not nodes:
        raise UnavailableError(
            "the cluster has no node that runs",
            reason=f"{manager.active} lists none",
            next_step="Start a NodeManager, then do the same again.",
        )
    largest = max(int(node.get("availMemoryMB", 0)) + int(node.get("usedMemoryMB", 0)) for node in nodes)
    wanted = driver_megabytes(conf)
    if wanted > largest:
        raise InvalidRequestError(
            "no node of the cluster has as much memory as this driver asks for",
            driver_mb=wanted,
            largest_node_mb=largest,
            next_step="Ask for less: --conf spark.driver.memory=… or spark.driver.memoryOverhead=….",
        )


def driver_megabytes(conf: Mapping[str, str]) -> int:
    """What the container of a driver needs: its heap and what is beside it, as Spark reckons it; 0 if unknown."""
    heap = megabytes(conf.get("spark.driver.memory", "1g"))
    beside = megabytes(conf.get("spark.driver.memoryOverhead", "0"))
    return heap + (beside or max(384, heap // 10))


def megabytes(text: str) -> int:
    """A size as Spark writes it, in whole MiB; without a unit it is MiB. 0 for what is none."""
    match = re.fullmatch(r"\s*([0-9]+)\s*([kmgt]?)i?b?\s*", text.lower())
    if not match:
        return 0
    return int(int(match[1]) * {"k": 1 / 1024, "": 1, "m": 1, "g": 1024, "t": 1024 * 1024}[match[2]])
