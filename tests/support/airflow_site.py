"""A real Airflow on loopback: api-server, scheduler, triggerer and dag-processor, each ended by its own pid.

Knows nothing of tests: the demo uses it, too.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from support.loopback import free_port
from support.tested_package import PYTHON

START_SECONDS = 240.0
STOP_SECONDS = 20.0
_USER = "admin"
_PASSWORDS = "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"
_COMPONENTS = {
    "api-server": ["api-server", "--workers", "1"],
    "dag-processor": ["dag-processor"],
    "scheduler": ["scheduler", "--skip-serve-logs"],
    "triggerer": ["triggerer", "--skip-serve-logs"],
}
_HEALTHY = ("metadatabase", "scheduler", "triggerer", "dag_processor")


class NotInTimeError(Exception):
    """Something awaited did not come; the message states what was last seen."""


class SiteError(Exception):
    """Airflow ended, or answered otherwise than it should."""


def airflow_environment(home: Path, dags_folder: Path) -> dict[str, str]:
    """What an Airflow in this home needs of its environment: SQLite, no examples, nothing read from elsewhere."""
    return {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags_folder),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def migrate(environment: Mapping[str, str]) -> None:
    """Create the database that the environment names."""
    _run_airflow(("db", "migrate"), environment)


def eventually(look: Callable[[], Any], what: str, seconds: float, every: float = 0.5) -> Any:
    """The first thing that ``look`` gives and that is not None or False.

    Raises:
        NotInTimeError: it gave none.
    """
    until = time.monotonic() + seconds  # noqa: TID251 - real processes take real time
    last: object = None
    while time.monotonic() < until:  # noqa: TID251
        try:
            found = look()
        except (OSError, SiteError) as error:
            found, last = None, error
        if found is not None and found is not False:
            return found
        time.sleep(every)  # noqa: TID251
    raise NotInTimeError(f"{what}: not within {seconds} s; last seen: {last}")


class AirflowSite:
    """A whole Airflow as a context manager; every process of it has ended when the block ends, whatever happens in it.

    Args:
        folder: for its home, database and logs; created.
        environment: more for its processes, e.g. ``AIRFLOW_CONN_…``.
        under: by component, the command that runs it, e.g. ``unshare``.
    """

    def __init__(
        self,
        folder: Path,
        dags_folder: Path,
        environment: Mapping[str, str],
        under: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.folder = folder
        self.logs = folder / "component-logs"
        self.environment = {
            **airflow_environment(folder, dags_folder),
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(port),
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__API__SECRET_KEY": secrets.token_hex(16),
            "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(32),
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__CORE__PARALLELISM": "2",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{_USER}:admin",
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
            "AIRFLOW__LOGGING__LOGGING_LEVEL": "INFO",
            _PASSWORDS: str(folder / "passwords.json"),
            **environment,
        }
        self._under = dict(under or {})
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._token = ""

    def __enter__(self) -> AirflowSite:
        self.logs.mkdir(parents=True)
        passwords = Path(self.environment[_PASSWORDS])
        passwords.write_text(json.dumps({_USER: secrets.token_hex(8)}))
        passwords.chmod(0o600)
        migrate(self.environment)
        try:
            for name, arguments in _COMPONENTS.items():
                self._start(name, arguments)
            eventually(self._is_up, "Airflow's components", START_SECONDS)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop()

    # what it is asked for

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """One call of the public API (``/api/v2`` is put before the path)."""
        if not self._token:
            self._token = self.token(_USER)
        return self._send(method, f"/api/v2{path}", body)

    def token(self, user: str) -> str:
        """The token of a user of the simple auth manager who signs in."""
        password = json.loads(Path(self.environment[_PASSWORDS]).read_text())[user]
        return str(self._send("POST", "/auth/token", {"username": user, "password": password})["access_token"])

    def command(self, *arguments: str) -> str:
        """Run ``airflow …``; gives its output."""
        return _run_airflow(arguments, self.environment)

    def wait_for_dags(self, *dag_ids: str, seconds: float = 120.0) -> None:
        """Until the DAGs are known."""

        def known() -> bool:
            return set(dag_ids) <= {dag["dag_id"] for dag in self.call("GET", "/dags")["dags"]}

        eventually(known, f"DAGs {dag_ids}", seconds)

    def unpause(self, dag_id: str, *, is_paused: bool = False) -> None:
        """Let the DAG run, or hold it."""
        self.call("PATCH", f"/dags/{dag_id}", {"is_paused": is_paused})

    def trigger(self, dag_id: str, conf: Mapping[str, Any] | None = None) -> str:
        """Start a run by REST; gives its run id."""
        body = {"logical_date": None, "conf": dict(conf or {})}
        return str(self.call("POST", f"/dags/{dag_id}/dagRuns", body)["dag_run_id"])

    def run_ids(self, dag_id: str) -> list[str]:
        """Every run of a DAG."""
        return [str(run["dag_run_id"]) for run in self.call("GET", f"/dags/{dag_id}/dagRuns")["dag_runs"]]

    def wait_for_run(
        self, dag_id: str, run_id: str, seconds: float, meanwhile: Callable[[], object] = lambda: None
    ) -> str:
        """The final state of a run; ``meanwhile`` is called before each poll."""

        def ended() -> str | None:
            self.check_alive()
            meanwhile()
            state = self.call("GET", f"/dags/{dag_id}/dagRuns/{_quoted(run_id)}")["state"]
            return state if state in ("success", "failed") else None

        try:
            return str(eventually(ended, f"end of {dag_id} {run_id}", seconds))
        except NotInTimeError as error:
            raise NotInTimeError(f"{error}\n{self.why_failed(dag_id, run_id)}") from None

    def need_success(
        self, dag_id: str, run_id: str, seconds: float, meanwhile: Callable[[], object] = lambda: None
    ) -> None:
        """Wait for a run that has to succeed; the error states why it did not.

        Raises:
            SiteError: it ended otherwise.
        """
        state = self.wait_for_run(dag_id, run_id, seconds, meanwhile)
        if state != "success":
            raise SiteError(f"{state}: {self.why_failed(dag_id, run_id)}")

    def task_states(self, dag_id: str, run_id: str) -> dict[str, str]:
        """State per task of a run."""
        found = self.call("GET", f"/dags/{dag_id}/dagRuns/{_quoted(run_id)}/taskInstances")["task_instances"]
        return {task["task_id"]: str(task["state"]) for task in found}

    def has_let_go(self, dag_id: str, run_id: str, task_id: str) -> bool:
        """Whether the scheduler knows that the worker which put off this try of a task has ended.

        What wakes the task before that ends the try: the scheduler takes the end of the worker for the task's own. A
        mapped task is named as ``TASK/INDEX``.
        """
        task = self.call("GET", f"/dags/{dag_id}/dagRuns/{_quoted(run_id)}/taskInstances/{task_id}")
        name, _, index = task_id.partition("/")
        key = f"(dag_id='{dag_id}', task_id='{name}', run_id='{run_id}', try_number={task['try_number']}"
        key += f", map_index={index or -1}"
        heard = (self.logs / "scheduler.log").read_text(errors="replace")
        return f"Received executor event with state success for task instance TaskInstanceKey{key}" in heard

    def xcom(self, dag_id: str, run_id: str, task_id: str) -> Any:
        """What a task returned."""
        task = f"/dags/{dag_id}/dagRuns/{_quoted(run_id)}/taskInstances/{task_id}"
        return self.call("GET", f"{task}/xcomEntries/return_value?deserialize=true")["value"]

    def why_failed(self, dag_id: str, run_id: str) -> str:
        """Task states, and the end of each log of a task that did not succeed."""
        states = self.task_states(dag_id, run_id)
        parts = [f"{dag_id} {run_id}: {states}"]
        for task_id, state in states.items():
            if state not in ("success", "skipped", "None", "upstream_failed"):
                logs = self.folder.glob(f"logs/dag_id={dag_id}/run_id={run_id}/task_id={task_id}/*.log*")
                parts += [f"{path}\n{path.read_text(errors='replace')[-4000:]}" for path in sorted(logs)]
        return "\n".join(parts)

    def check_alive(self) -> None:
        """No component has ended.

        Raises:
            RuntimeError: one has; the message states what it last wrote.
        """
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise RuntimeError(f"{name} ended with {process.returncode}:\n{self.tail(name)}")

    def tail(self, name: str) -> str:
        """The last of what a component wrote."""
        return (self.logs / f"{name}.log").read_text(errors="replace")[-6000:]

    def pid(self, name: str) -> int:
        """The process of a component."""
        return self._processes[name].pid

    def restart(self, name: str) -> None:
        """End a component and start it again."""
        _end(self._processes[name])
        self._start(name, _COMPONENTS[name])

    def kill(self, name: str) -> None:
        """End a component and all that it has started at once, as with its machine, and start it again."""
        process = self._processes[name]
        _signal_session(process, signal.SIGKILL)
        process.wait(STOP_SECONDS)
        self._start(name, _COMPONENTS[name])

    # how it runs

    def _start(self, name: str, arguments: list[str]) -> None:
        with (self.logs / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [*self._under.get(name, ()), *PYTHON, "-m", "airflow", *arguments],
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _is_up(self) -> bool:
        self.check_alive()
        health = self._send("GET", "/api/v2/monitor/health", None)
        return all(health[name]["status"] == "healthy" for name in _HEALTHY)

    def _stop(self) -> None:
        for process in self._processes.values():
            _signal_session(process, signal.SIGTERM)
        for process in self._processes.values():
            _end(process)

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        request = urllib.request.Request(  # noqa: S310 - our own server
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "Authorization": f"Bearer {self._token}"},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            raise SiteError(f"{method} {path}: {error.code} {error.read().decode()[:2000]}") from None


def _quoted(run_id: str) -> str:
    return urllib.request.quote(run_id, safe="")  # type: ignore[attr-defined,no-any-return]


def _run_airflow(arguments: tuple[str, ...], environment: Mapping[str, str]) -> str:
    done = subprocess.run(
        [*PYTHON, "-m", "airflow", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    if done.returncode != 0:
        raise SiteError(f"airflow {' '.join(arguments)}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def _end(process: subprocess.Popen[bytes]) -> None:
    _signal_session(process, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_SECONDS)
    _signal_session(process, signal.SIGKILL)
    process.wait(STOP_SECONDS)


def _signal_session(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    # Each component leads its own session. Only what is in it is signalled: a driver that a task started leads
    # another session, and outlives Airflow by design.
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            if os.getsid(pid) == process.pid:
                os.kill(pid, number)
