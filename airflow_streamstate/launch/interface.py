"""What every launcher promises; ``tests/contract/launch`` checks each implementation.

A driver outlives its launching process, so it is represented by a handle of plain JSON that any process can ask with,
any time later, as ``kubectl`` asks about a job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol, Self

from airflow_streamstate.errors import MalformedMessageError
from airflow_streamstate.protocol.codec import FieldError, fields_json, read_fields

LaunchState = Literal["pending", "running", "exited", "gone", "unknown"]


class _Plain:
    """A dataclass that can be plain JSON."""

    def to_json(self) -> dict[str, object]:
        """The fields as a JSON object; those of a ``LaunchRequest`` may hold secrets."""
        return fields_json(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, object]) -> Self:
        """The value of this JSON object; unknown fields are ignored (Law 7).

        Raises:
            MalformedMessageError: a field is missing or of another type.
        """
        try:
            return read_fields(cls, raw)
        except FieldError as error:
            raise MalformedMessageError("this JSON object is not what a launcher wrote", reason=str(error)) from None


@dataclass(frozen=True, kw_only=True)
class LaunchRequest(_Plain):
    """One driver to run.

    Attributes:
        launch_key: names the driver; the same key twice is the same driver (Law 2).
        application: absolute local path of the script.
        modules: what the script imports from its own folder, by their paths below that of ``application``.
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
    modules: tuple[str, ...] = ()
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


@dataclass(frozen=True)
class LaunchHandle(_Plain):
    """How to ask about one driver, from anywhere and any time later.

    Attributes:
        launcher: the ``name`` of the launcher that understands ``data``.
        data: plain JSON of the launcher; holds no secret.
    """

    launcher: str
    launch_key: str
    data: Mapping[str, object]


@dataclass(frozen=True)
class LaunchStatus(_Plain):
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
