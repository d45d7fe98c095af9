"""The interface of every launcher, its options and its recorded handles; ``tests/contract/launch`` checks each."""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import field
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

from airflow_streamstate.errors import InvalidRequestError, MalformedMessageError, UntrustedRecordError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.codec import FieldError, fields_json, read_fields

if TYPE_CHECKING:
    from typing_extensions import Self


LaunchState = Literal["pending", "running", "exited", "gone", "unknown"]
LOCAL = "local"
DRIVER_CONFIG = "driver.json"
"""What a launch writes for its driver, for its owner alone: arguments, settings and secrets."""
"""The launcher of drivers on this machine."""
PYTHON_ENV = "python_env"
"""The option of a launcher for an archive of a Python environment. A local path is pinned in the home when a version is
deployed; a launch has the path of that file in its folder instead. A URI stays as it is."""
Connect = Callable[[str], Any]
"""The client that an Airflow connection describes; the launcher that takes it decides its kind."""
_PLACE_FACTS = ("cluster", "context", "namespace", "pod", "application_id", "job_run_id", "queue", "host")


class _Plain:
    """A dataclass that can be plain JSON."""

    def to_json(self) -> dict[str, object]:
        """The fields as a JSON object; those of a ``LaunchRequest`` may hold secrets."""
        return fields_json(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, object]) -> Self:
        """The value of this JSON object; unknown fields are ignored (Law 7).

        Raises:
            MalformedMessageError: a field is missing or of a different type.
        """
        try:
            return read_fields(cls, raw)
        except FieldError as error:
            raise MalformedMessageError("this JSON object is not what a launcher wrote", reason=str(error)) from None


@dataclass(frozen=True, kw_only=True)
class LaunchPlace(_Plain):
    """Where one driver is, or would be: enough to find it without its request.

    Attributes:
        launcher: the ``name`` of its launcher.
        scope: ``<home id>/<stream id>``: launch keys are unique within it, never across.
        folder: absolute folder of this launch on the caller's machine, which may never have been there.
        log_path: where the output of a driver on the caller's machine goes; "" for ``driver.log`` in ``folder``.
        work_dir: the caller's folder for launches, below which no symbolic link is followed; "" for that above.
        options: plain JSON of the launcher, without secrets: cluster, namespace, image, queue, …
        conn_id: the Airflow connection by which the launcher reaches its cluster; "" without one.
    """

    launcher: str = LOCAL
    scope: str = ""
    launch_key: str
    folder: str
    log_path: str = ""
    work_dir: str = ""
    options: Mapping[str, object] = field(default_factory=dict)
    conn_id: str = ""


@dataclass(frozen=True, kw_only=True)
class LaunchRequest(_Plain):
    """One driver to run.

    Attributes:
        launch_key: names the driver; the same key twice within a ``scope`` is the same driver (Law 2).
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
        launcher, scope, work_dir, options, conn_id: as of ``LaunchPlace``.
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
    launcher: str = LOCAL
    scope: str = ""
    work_dir: str = ""
    options: Mapping[str, object] = field(default_factory=dict)
    conn_id: str = ""

    @property
    def place(self) -> LaunchPlace:
        """Where the driver is, or would be."""
        return LaunchPlace(
            launcher=self.launcher,
            scope=self.scope,
            launch_key=self.launch_key,
            folder=self.folder,
            log_path=self.log_path,
            work_dir=self.work_dir,
            options=self.options,
            conn_id=self.conn_id,
        )

    def placed_later(self, what: str) -> tuple[str, ...]:
        """Those of ``py_files``, ``files`` or ``jars`` that need not exist before the launch: of jars, which may be
        anywhere on the machine, the ones in ``folder``.
        """
        items: tuple[str, ...] = getattr(self, what)
        return tuple(item for item in items if what != "jars" or item.startswith(f"{self.folder}/"))


@dataclass(frozen=True)
class LaunchHandle(_Plain):
    """How to ask about one driver, from anywhere and any time later.

    Attributes:
        launcher: the ``name`` of the launcher that understands ``data``.
        data: plain JSON of the launcher; holds no secret.
        refused: why nobody asks about this driver; "" for one that is asked about.
    """

    launcher: str
    launch_key: str
    data: Mapping[str, object]
    refused: str = ""


def no_page(handle: LaunchHandle, page: str) -> InvalidRequestError:
    """The error of a page that a driver does not have."""
    return InvalidRequestError(
        "the launcher of this driver makes no such page",
        launcher=handle.launcher,
        page=page[:100],
        next_step="Use the links that `streamstate status` names.",
    )


def describe_place(handle: LaunchHandle) -> str:
    """Where a driver runs, human-readable: the launcher, and the texts of its handle that name a place."""
    named = (f"{name} {handle.data[name]}" for name in _PLACE_FACTS if handle.data.get(name))
    return f"{handle.launcher}: {', '.join(named)}".removesuffix(": ")


@dataclass(frozen=True)
class LaunchStatus(_Plain):
    """The observed status of a driver.

    Attributes:
        state: ``pending`` recorded, but no driver has started for it yet (launch again, or kill); ``running``;
            ``exited`` with an exit code, nothing of it left; ``gone`` nothing of it left and no exit code: it was
            killed, or can never start; ``unknown`` it could not be asked, which never means dead.
        exit_code: of ``exited``; 128 + n for signal n. None otherwise.
        reason: one lower-case, human-readable sentence; "" without one.
        reported_end: of ``unknown`` only: the cluster reports that the driver has ended, but its processes may still
            work. A successor has to wait until the heartbeats have been silent for long enough (1a.8).
    """

    state: LaunchState
    exit_code: int | None
    reason: str
    observed_at: datetime
    reported_end: bool = False

    @property
    def has_ended(self) -> bool:
        """Whether the driver is proven ended: nothing of it runs, and nothing of it will (1a.8)."""
        return self.state in ("exited", "gone")


class Launcher(Protocol):
    """Starts drivers, one per launch key, and answers for them.

    Attributes:
        default_master: Spark's master of a driver for which none is named.
        limits: promises of ``launch.conformance`` that it cannot keep in principle, by name, with one sentence each.
        reaching: the options that decide which process, file, host, endpoint or credential of its caller is used. The
            reader of a home allows their values (``allowed``).
    """

    default_master: str
    limits: ClassVar[Mapping[str, str]]
    reaching: ClassVar[Collection[str]]

    @property
    def name(self) -> str:
        """The value of ``LaunchHandle.launcher``."""

    def check(self, request: LaunchRequest) -> None:
        """Check whether the driver could be started, as far as that can be known; starts and writes nothing.

        Its ``application``, ``py_files`` and ``files`` need not exist yet, nor what else is in its ``folder``. It may
        ask the cluster, for seconds.

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
            OutcomeUnknownError: the driver may or may not run; the same call again finds out.
        """

    def find(self, place: LaunchPlace) -> LaunchHandle | None:
        """The handle of a launch whose caller died before it recorded one; None if nothing was ever started there.

        Raises:
            InvalidRequestError: the options name no place.
            UnavailableError: it cannot be asked now.
        """

    def handle_at(self, place: LaunchPlace, recorded: LaunchHandle) -> LaunchHandle:
        """The handle by which a recorded driver may be asked. Asks nobody.

        Where the driver is comes from ``place``, whose reaching options the reader of the home has allowed, and from
        its ids. Of ``recorded``, which anyone can have written, only the ids of the run are taken, by their pattern
        (``launch.interface``).

        Raises:
            UntrustedRecordError: the record states something else.
            InvalidRequestError: the options of ``place`` name no place.
        """

    def status(self, handle: LaunchHandle) -> LaunchStatus:
        """The status of the driver now. Never waits; a driver that cannot be asked is ``unknown``, not an error."""

    def kill(self, handle: LaunchHandle, grace_seconds: float) -> LaunchStatus:
        """End the driver and all its processes, and return its status; may be repeated.

        A ``pending`` launch is closed for good: no driver will ever start for its key.

        Args:
            grace_seconds: time to end by itself before it is forced.
        """

    def logs(self, handle: LaunchHandle, tail_bytes: int) -> str:
        """The last bytes of the driver's output; "" if it has none."""

    def links(self, handle: LaunchHandle) -> Mapping[str, str]:
        """Pages about the driver by what they show ("Spark UI", "YARN application", …): URLs. {} without any.

        "" in place of a URL: whoever has it is let in, so that it is made for the person who asks (``OpensPages``).
        """

    def forget(self, handle: LaunchHandle) -> None:
        """Remove what a cluster keeps of a driver that has ended; nothing of one that may run. May be repeated.

        The folder of the launch on the caller's machine is not touched.

        Raises:
            UnavailableError: it cannot be removed now.
        """


@runtime_checkable
class OpensPages(Protocol):
    """A launcher with pages that let in whoever has their URL: it is made for one person, and never recorded."""

    def opened(self, handle: LaunchHandle, page: str) -> str:
        """The URL of a page that ``links`` names, made now.

        Raises:
            InvalidRequestError: there is no such page.
            UnavailableError: it cannot be made now.
        """


# A launcher's options as they are given: names that exist, values in one form from the shell and from Airflow.


def plain_options(given: Mapping[str, object]) -> dict[str, object]:
    """The options in the form of a command line: texts, and the lists and objects that are written as JSON.

    A DAG's number or boolean is the text that a shell would give, so that both ask for the same.
    """
    return {str(name): _plain(value) for name, value in given.items()}


def option_text(value: object) -> object:
    """A number or a boolean as text; anything else as it is."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return str(value)
    return value


def read_options(launcher: str, given: Mapping[str, object], known: Iterable[str]) -> dict[str, object]:
    """The options as ``plain_options``, all of which this launcher has.

    Raises:
        InvalidRequestError: it lacks one; the next step names the nearest.
    """
    names = list(known)
    for name in given:
        if name in names:
            continue
        near = difflib.get_close_matches(name, names, 1)
        raise InvalidRequestError(
            "this launcher has no such option",
            launcher=launcher,
            option=name,
            known=", ".join(names),
            next_step=f"Did you mean {near[0]}?" if near else "Use one of the known ones.",
        )
    return plain_options(given)


def _plain(value: object) -> object:
    if not isinstance(value, str) or not value.lstrip().startswith(("{", "[")):
        return option_text(value)
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value  # the launcher reports what is wrong with a text that is not JSON


# What a launcher may take from a recorded handle: the ids of the run, by their pattern. All else is only compared.
#
# Whoever can write into a home can write such a record.

_MOST_SHOWN = 200
_WARNING = "It can be forged: nothing was done by it."


def check_launch(place: LaunchPlace, recorded: LaunchHandle) -> None:
    """Raise UntrustedRecordError where the record is of a different launcher or launch."""
    for name in ("launcher", "launch_key"):
        if getattr(recorded, name) != getattr(place, name):
            raise untrusted(place, name, getattr(recorded, name), getattr(place, name))


def check_same(place: LaunchPlace, recorded: LaunchHandle, expected: Mapping[str, object]) -> None:
    """Raise UntrustedRecordError where a record differs from ``expected``; it may lack names."""
    for name, value in expected.items():
        if name in recorded.data and recorded.data[name] != value:
            raise untrusted(place, name, recorded.data[name], value)


def check_options(place: LaunchPlace, recorded: LaunchHandle, expected: Mapping[str, object]) -> None:
    """As ``check_same``, of the options that a record has; one that it lacks is at its default."""
    options = recorded.data.get("options", {})
    if not isinstance(options, Mapping):
        raise untrusted(place, "options", options, "an object")
    for name, value in expected.items():
        if options.get(name, value) != value:
            raise untrusted(place, name, options[name], value)


def id_in(place: LaunchPlace, recorded: LaunchHandle, name: str, pattern: re.Pattern[str]) -> str:
    """An id of the run, as the record states it; "" where it states none.

    Raises:
        UntrustedRecordError: it is no text of this pattern.
    """
    value = recorded.data.get(name)
    if value is None or value == "":
        return ""
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise untrusted(place, name, value, f"text of the form {pattern.pattern}")
    return value


def untrusted(place: LaunchPlace, name: str, recorded: object, expected: object) -> UntrustedRecordError:
    """The error of a record that differs from what its reader knows."""
    return UntrustedRecordError(
        f"the record of this launch names another {name.replace('_', ' ')} than its reader's configuration",
        launcher=place.launcher,
        launch_key=place.launch_key,
        recorded=_shown(recorded),
        expected=_shown(expected),
        next_step=f"{_WARNING} If the driver was launched with other settings, use those.",
    )


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"
