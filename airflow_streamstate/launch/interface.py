"""What every launcher promises; ``tests/contract/launch`` checks each implementation.

A driver outlives its launching process, so it is represented by a handle of plain JSON that any process can ask with,
any time later, as ``kubectl`` asks about a job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Literal, Protocol, TypeVar, get_args

from airflow_streamstate.errors import MalformedMessageError
from airflow_streamstate.protocol.codec import format_time, parse_time

LaunchState = Literal["pending", "running", "exited", "gone", "unknown"]
LAUNCH_STATES: tuple[LaunchState, ...] = get_args(LaunchState)

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class LaunchRequest:
    """One driver to run.

    Attributes:
        launch_key: names the driver; the same key twice is the same driver (Law 2).
        application: absolute local path of the script.
        master: Spark's master URL; "" where ``spark_submit`` names it.
        environment: environment variables that are added to the launcher's own, or replace them.
        py_files, files, jars: local paths or URIs.
        packages: Maven coordinates.
        driver_config: plain JSON for the runner inside the driver; never shown in a process list.
        folder: absolute local folder of this launch: intent, handle, exit status and working files.
        log_path: where stdout and stderr of the driver are appended.
        spark_submit: another command than the ``spark-submit`` that the launcher finds, with its first options (for
            example from an Airflow connection); None for the one that it finds.
        working_folder: the driver's current folder; None for that of the launcher.
        needs_s3: Spark itself must reach S3: the launcher adds the packages that it lacks for that.
        attaches: the script itself is submitted, and finds ``driver_config`` by its environment.
    """

    launch_key: str
    application: str
    arguments: tuple[str, ...] = ()
    master: str
    conf: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    py_files: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    jars: tuple[str, ...] = ()
    driver_config: Mapping[str, object] = field(default_factory=dict)
    folder: str
    log_path: str
    spark_submit: tuple[str, ...] | None = None
    working_folder: str | None = None
    needs_s3: bool = False
    attaches: bool = False

    def to_json(self) -> dict[str, object]:
        """A plain JSON object. It may hold secrets."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, raw: Mapping[str, object]) -> LaunchRequest:
        """The request in this JSON object; unknown fields are ignored (Law 7).

        Raises:
            MalformedMessageError: a field is missing or of another type.
        """
        return cls(
            launch_key=_read(raw, "launch_key", _text),
            application=_read(raw, "application", _text),
            arguments=_read(raw, "arguments", _texts),
            master=_read(raw, "master", _text),
            conf=_read(raw, "conf", _text_mapping),
            environment=_read(raw, "environment", _text_mapping),
            py_files=_read(raw, "py_files", _texts),
            files=_read(raw, "files", _texts),
            packages=_read(raw, "packages", _texts),
            jars=_read(raw, "jars", _texts),
            driver_config=_read(raw, "driver_config", _mapping),
            folder=_read(raw, "folder", _text),
            log_path=_read(raw, "log_path", _text),
            spark_submit=_read(raw, "spark_submit", _optional(_texts)),
            working_folder=_read(raw, "working_folder", _optional(_text)),
            needs_s3=raw.get("needs_s3") is True,
            attaches=raw.get("attaches") is True,
        )


@dataclass(frozen=True)
class LaunchHandle:
    """How to ask about one driver, from anywhere and any time later.

    Attributes:
        launcher: the ``name`` of the launcher that understands ``data``.
        data: plain JSON of the launcher; holds no secret.
    """

    launcher: str
    launch_key: str
    data: Mapping[str, object]

    def to_json(self) -> dict[str, object]:
        return {"launcher": self.launcher, "launch_key": self.launch_key, "data": dict(self.data)}

    @classmethod
    def from_json(cls, raw: Mapping[str, object]) -> LaunchHandle:
        return cls(
            launcher=_read(raw, "launcher", _text),
            launch_key=_read(raw, "launch_key", _text),
            data=_read(raw, "data", _mapping),
        )


@dataclass(frozen=True)
class LaunchStatus:
    """The observed status of a driver.

    Attributes:
        state: ``pending`` recorded, but no driver has started for it yet (launch again, or kill); ``running``;
            ``exited`` with an exit code, nothing of it left; ``gone`` nothing of it left and no exit code: it was
            killed, or can never start; ``unknown`` it could not be asked, which never means dead.
        exit_code: of ``exited``; 128 + n for signal n. None otherwise.
        reason: one lower-case sentence for people; "" for none.
    """

    state: LaunchState
    exit_code: int | None
    reason: str
    observed_at: datetime

    @property
    def has_ended(self) -> bool:
        """Whether the driver is proven ended: nothing of it runs, and nothing of it will (1a.8)."""
        return self.state in ("exited", "gone")

    def to_json(self) -> dict[str, object]:
        return {
            "state": self.state,
            "exit_code": self.exit_code,
            "reason": self.reason,
            "observed_at": format_time(self.observed_at),
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, object]) -> LaunchStatus:
        return cls(
            state=_read(raw, "state", _state),
            exit_code=_read(raw, "exit_code", _optional(_integer)),
            reason=_read(raw, "reason", _text),
            observed_at=_read(raw, "observed_at", lambda value: parse_time(_text(value)).astimezone(UTC)),
        )


class Launcher(Protocol):
    """Starts drivers, one per launch key, and answers for them."""

    @property
    def name(self) -> str:
        """The value of ``LaunchHandle.launcher``."""

    def check(self, request: LaunchRequest) -> None:
        """Check whether the driver could be started, as far as that can be known; starts and writes nothing.

        Its ``application``, ``py_files`` and ``files`` need not exist yet. It may ask the cluster, for seconds.

        Raises:
            InvalidRequestError: ``launch`` would refuse it.
            UnavailableError: the driver would find no cluster now; the same call may work later.
        """

    def spark_version(self, request: LaunchRequest) -> str:
        """The version of the Spark that the driver would run on; "" if unknown.

        Raises:
            InvalidRequestError: as ``check``.
        """

    def launch(self, request: LaunchRequest) -> LaunchHandle:
        """Start the driver, or find the one that this key has started already, in whatever state it is now.

        Raises:
            InvalidRequestError: it cannot run: a file is missing, no spark-submit, no Java, …
            ConflictError: the folder belongs to another launch key.
            UnavailableError: nothing was started; the same call may work later.
            OutcomeUnknownError: the driver may or may not run; the same call again tells.
        """

    def find(self, folder: str, launch_key: str) -> LaunchHandle | None:
        """The handle of a launch whose caller died before it recorded one; None if nothing was ever begun there."""

    def status(self, handle: LaunchHandle) -> LaunchStatus:
        """The status of the driver now. Never waits; a driver that cannot be asked is ``unknown``, not an error."""

    def kill(self, handle: LaunchHandle, grace_seconds: float) -> LaunchStatus:
        """End the driver and all its processes, and return its status; may be repeated.

        A ``pending`` launch is closed for good: no driver will ever start for its key.

        Args:
            grace_seconds: time to end by itself before it is forced.
        """

    def logs(self, handle: LaunchHandle, tail_bytes: int) -> str:
        """The last bytes of the driver's output; "" for none."""


def _read(raw: Mapping[str, object], name: str, reader: Callable[[object], T]) -> T:
    try:
        return reader(raw[name])
    except KeyError:
        problem = f"field {name} is missing"
    except (TypeError, ValueError):
        problem = f"field {name} has another type or value than it must have"
    raise MalformedMessageError("this JSON object is not what a launcher wrote", reason=problem)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _integer(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError
    return value


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise TypeError
    return tuple(_text(item) for item in value)


def _mapping(value: object) -> dict[str, object]:
    if not isinstance(value, Mapping):
        raise TypeError
    return {_text(key): item for key, item in value.items()}


def _text_mapping(value: object) -> dict[str, str]:
    return {key: _text(item) for key, item in _mapping(value).items()}


def _state(value: object) -> LaunchState:
    if value not in LAUNCH_STATES:
        raise ValueError
    return value


def _optional(reader: Callable[[object], T]) -> Callable[[object], T | None]:
    return lambda value: None if value is None else reader(value)
