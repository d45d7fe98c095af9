"""The home of streams: the store of control objects, the store of checkpoints, and the folder of launches."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_streamstate.allowed import Allowed
from airflow_streamstate.clock import SYSTEM_CLOCK, Clock
from airflow_streamstate.control.objects import FeedReader, FeedWriter, Memory
from airflow_streamstate.control.presence import GuardedHome, HomePresence
from airflow_streamstate.control.stream import StreamControl, lost_register
from airflow_streamstate.controller.stream_guards import refuse_adopted
from airflow_streamstate.errors import (
    ConflictError,
    DataError,
    InvalidRequestError,
    ObjectExistsError,
    StreamStateError,
    VersionConflictError,
)
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.launch.folder import is_reached_plainly
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.ids import check_stream_id
from airflow_streamstate.protocol.records import DeploymentSpec
from airflow_streamstate.protocol.signing import SigningKeys
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.local import LocalStore
from airflow_streamstate.store.open import local_folder, open_store
from airflow_streamstate.store.options import ReachedBySpark, StoreOptions, secrets_in

if TYPE_CHECKING:
    from airflow_streamstate.snapshot.location import OpenPlace, SnapshotPlaces


_PROBE_FOLDER = "_doctor"  # no stream can have this name


@dataclass(frozen=True)
class HomeConfig:
    """Where streams are kept.

    Attributes:
        home_uri: as ``store.open.open_store`` takes it.
        checkpoints_uri: the store of checkpoints and of the data of snapshots; None: the home.
        options: how to reach its stores.
        work_dir: the folder of this machine for launches (code, driver configuration, log, exit status); None:
            next to checkpoints that are in a folder, else ``default_work_dir``.
        allowed: what its objects may name beyond it.
        keys: sign what only controllers write, and are asked for at each read of it; None for no signatures.
    """

    home_uri: str
    checkpoints_uri: str | None = None
    options: StoreOptions = field(default_factory=StoreOptions)
    work_dir: str | None = None
    allowed: Allowed = field(default_factory=Allowed)
    keys: SigningKeys | None = field(default=None, repr=False)


class Home:
    """The opened home. Opening reads neither disk nor network.

    Raises:
        InvalidRequestError: a URI names no known store.
    """

    def __init__(self, config: HomeConfig, clock: Clock = SYSTEM_CLOCK) -> None:
        self.config = config
        self.clock = clock
        self.home: Store = open_store(config.home_uri, options=config.options, clock=clock, makes_root=False)
        self.presence = HomePresence(self.home, clock, keys=config.keys)
        self._memory = Memory()
        self._feed: FeedWriter | None = FeedWriter(GuardedHome(self.presence), clock)
        self._checkpoints = self.home
        self._open_place: OpenPlace = partial(open_store, options=config.options, clock=clock)
        self._places: SnapshotPlaces | None = None
        if config.checkpoints_uri is not None:
            checkpoints = open_store(config.checkpoints_uri, options=config.options, clock=clock)
            self._checkpoints = self.home if checkpoints.uri == self.home.uri else checkpoints
        self._is_for_spark = isinstance(self._checkpoints, LocalStore | ReachedBySpark)
        self._launches = _work_dir(config, self._checkpoints)
        self._identity = ""

    @classmethod
    def of(
        cls,
        home: Store,
        checkpoints: Store,
        folder: Path,
        clock: Clock,
        open_place: OpenPlace | None = None,
        feed: FeedWriter | None = None,
        allowed: Allowed | None = None,
        keys: SigningKeys | None = None,
    ) -> Home:
        """A home over open stores.

        Args:
            home: the store of control objects.
            checkpoints: the store of checkpoints and of the data of snapshots.
            folder: the folder of this machine for launches.
            open_place: opens other stores of snapshots; None: as ``Home`` does.
            feed: where its writers report what is new; None for nowhere.
            allowed: what its objects may name beyond it; None for nothing.
            keys: as in ``HomeConfig``.
        """
        made = cls.__new__(cls)
        made.config = HomeConfig(
            home_uri=home.uri, checkpoints_uri=checkpoints.uri, allowed=allowed or Allowed(), keys=keys
        )
        made.clock = clock
        made.home = home
        made.presence = HomePresence(home, clock, keys=keys)
        made._memory = Memory()
        made._feed = feed
        made._checkpoints = checkpoints
        made._open_place = open_place or partial(open_store, options=made.config.options, clock=clock)
        made._places = None
        made._is_for_spark = True
        made._launches = folder
        made._identity = ""
        return made

    @property
    def checkpoints(self) -> Store:
        """The store of checkpoints and of the data of snapshots.

        Raises:
            InvalidRequestError: Spark cannot write there.
        """
        if not self._is_for_spark:
            raise InvalidRequestError(
                "checkpoints must be in a folder of this machine, or on S3, GCS or Azure",
                home_uri=self.home.uri,
                checkpoints_uri=self.config.checkpoints_uri or "not set",
                next_step="Set checkpoints_uri (--checkpoints) to a folder, s3://…, gs://… or abfss://….",
            )
        return self._checkpoints

    @property
    def places(self) -> SnapshotPlaces:
        """The stores in which data of snapshots may be. Raises as ``checkpoints``."""
        if self._places is None:
            from airflow_streamstate.snapshot.location import SnapshotPlaces

            self._places = SnapshotPlaces(self.checkpoints, self._checking(self._open_place), self.clock)
        return self._places

    def _checking(self, open_place: OpenPlace) -> OpenPlace:
        def opened(uri: str) -> Store:
            self.check_store(uri)
            return open_place(uri)

        return opened

    def check_store(self, uri: str, **facts: object) -> None:
        """Check that a mirror or snapshots of this home may be at this URI: any record may name one.

        Raises:
            InvalidRequestError: it is neither the home's own nor allowed.
        """
        if uri not in (self.home.uri, self._checkpoints.uri):
            self.config.allowed.check_store(uri, **facts)

    @property
    def identity(self) -> str:
        """The id in the record of the home, by which clusters distinguish homes; "" before the first deploy.

        Raises:
            DataError: the record cannot be read.
            UnavailableError, StoreRefusedError: the store does not answer.
        """
        if not self._identity:
            self._identity = self.presence.identity() or ""
        return self._identity

    def credentials(self, environ: Mapping[str, str]) -> tuple[str, ...]:
        """The secrets by which this home is reached and signed, from its options and from an environment."""
        keys = () if self.config.keys is None else self.config.keys.texts
        return (*self.config.options.secrets(), *secrets_in(environ), *keys)

    @property
    def work_dir(self) -> Path:
        """The folder of launches on this machine."""
        return self._launches

    def launch_path(self, key: str) -> Path:
        """The path of a file of a launch on this machine.

        Launches are always local files: Spark reads its code and settings from there, and writes its log and exit
        status there even while no store answers.
        """
        return self._launches / key

    def remove_launches(self, folder: str) -> None:
        """Remove the files of all launches below this key on this machine; none of them may still run."""
        self.remove_launch(f"{folder}/launches")
        for path in (self.launch_path(folder), self.launch_path(folder).parent):
            with contextlib.suppress(OSError):
                path.rmdir()  # empty where launches have their own folder

    def remove_launch(self, folder: str) -> None:
        """Remove the files of one launch, by its key, on this machine; it must not still run."""
        path = self.launch_path(folder)
        if is_reached_plainly(path, self._launches):
            shutil.rmtree(path, ignore_errors=True)

    def remove_stream(self, stream_id: str, *, but: str) -> None:
        """Remove all files of a stream on this machine, except the one of this name."""
        folder = self.launch_path(stream_id)
        is_plain = is_reached_plainly(folder, self._launches)
        for path in folder.iterdir() if is_plain and folder.is_dir() else ():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != but:
                path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            folder.rmdir()

    def control(self, stream_id: str, *, begins: bool = False) -> StreamControl:
        """One stream's control objects.

        Args:
            begins: the caller may create the home: a missing home counts as an empty one, until ``begin`` makes it.

        Raises:
            InvalidRequestError: the stream id is malformed.
            HomeAwayError: with ``begins``, where this process has used the home and it is not there now.
            UnavailableError, StoreRefusedError: the store does not answer.
        """
        if begins and not self.is_there():
            self.presence.refuse_to_begin()
            return StreamControl(self.home, stream_id, self.clock, keys=self.config.keys)
        return StreamControl(
            self.home, stream_id, self.clock, self.presence, self._memory, self._feed, self.config.keys
        )

    def feed_reader(self) -> FeedReader:
        """A reader of what is written in this home, for one process."""
        return FeedReader(self.home, self.clock)

    @property
    def guarded(self) -> Store:
        """The store of the home for writes, which it refuses while the home is not there."""
        return GuardedHome(self.presence)

    def is_there(self) -> bool:
        """Whether there is a home, with streams or without. Raises UnavailableError, StoreRefusedError."""
        return self.presence.is_there()

    def begin(self, requested_by: str, *, has_stream: bool = False) -> None:
        """Make this store a home unless it is one. Only what creates a stream calls this: deploy, adoption and
        restoration.

        Args:
            has_stream: the caller has read a stream in it, so the home must be there.

        Raises:
            HomeFormatError: this version does not read it.
            HomeAwayError, HomeNotFoundError: the home was there before, and is gone.
            StreamStateError: the record cannot be written.
        """
        self.presence.begin(requested_by, has_stream=has_stream)

    def stream_ids(self, known: Collection[str] = ()) -> list[str]:
        """The streams of this home, sorted.

        Args:
            known: streams of before; while their folders are there, nothing is read of them.

        Raises:
            HomeNotFoundError, HomeAwayError: there is no home.
            HomeFormatError: this version does not read it.
        """
        self.presence.need_readable()
        folders = [name for name in self.home.list_folders("") if is_stream_id(name)]
        names = [name for name in folders if name in known or self._is_stream(name)]
        if not names:
            self.presence.need()
        return names

    def _is_stream(self, stream_id: str) -> bool:
        """Whether it has a register, or has lost it; True also if that is unknown: its status reports why."""
        try:
            has_register = self.home.head(layout.register_key(stream_id)) is not None
            return has_register or lost_register(self.control(stream_id)) is not None
        except StreamStateError:
            self.presence.need()
            return True

    def need_stream(self, stream_id: str) -> StreamControl:
        """The control objects of an existing stream.

        Raises:
            StreamNotFoundError: there is no such stream.
            MalformedMessageError: the stream has deployments, but its register is gone.
        """
        control = self.control(stream_id)
        if control.register_or_lost() is None:
            raise control.not_found()
        return control

    def check_place(self, spec: DeploymentSpec) -> None:
        """Raise InvalidRequestError where a deployment's checkpoints are in another store than this home's: in the
        wrong store they would look missing (Law 5)."""
        if spec.checkpoints_uri != self.checkpoints.uri:
            raise InvalidRequestError(
                "the checkpoints of the current deployment are elsewhere",
                deployment_id=spec.deployment_id,
                checkpoints_uri=spec.checkpoints_uri,
                configured=self.checkpoints.uri,
                next_step="Give the checkpoints_uri that it was deployed with; only a deploy --start fresh starts"
                " elsewhere.",
            )

    def refuse_left_checkpoints(self, control: StreamControl, deployment_id: str) -> None:
        """Refuse a new deployment that would continue unasked from checkpoints already in its place (Law 5).

        Raises:
            ConflictError: an earlier stream of this name left checkpoints; or a query is being adopted as this stream.
        """
        refuse_adopted(control)
        folder = layout.checkpoints_folder(control.stream_id, deployment_id)
        # By objects, not by folders: S3A leaves the markers of emptied folders.
        if next(iter(self.checkpoints.list_objects(f"{folder}/")), None) is not None:
            raise ConflictError(
                "checkpoints of another stream of this name are in the place of the new deployment's",
                stream_id=control.stream_id,
                deployment_id=deployment_id,
                folder=f"{self.checkpoints.uri}/{folder}",
                next_step="Move that folder away if no stream will continue from it, or give another checkpoints_uri.",
            )

    def check(self) -> str:
        """Test that the home can be written and that its conditional writes hold; returns one human-readable sentence.

        Raises:
            InvalidRequestError: no permission, no bucket, conditions that do not hold, or checkpoints where Spark
                cannot write.
            UnavailableError: a store does not answer.
        """
        checkpoints = self.checkpoints
        if isinstance(checkpoints, ReachedBySpark):
            checkpoints.for_spark()
        is_there = self.is_there()
        for store in dict.fromkeys((self.home, checkpoints)):
            with store.made_for_a_while() if isinstance(store, LocalStore) else contextlib.nullcontext():
                self._probe(store)
        said = f"conditional writes hold in {self.home.uri}; checkpoints are in {checkpoints.uri}"
        return said if is_there else f"no home is here yet (the first deploy makes it; or is it not mounted?); {said}"

    def _probe(self, store: Store) -> None:
        key = f"{_PROBE_FOLDER}/{self.clock.new_uuid()}.json"
        version = store.create(key, b"1")
        try:
            _need_refusal(store, lambda: store.create(key, b"2"), "a create over an object")
            second = store.replace(key, b"3", version)
            _need_refusal(store, lambda: store.replace(key, b"4", version), "a replace of an older version")
            _need_refusal(store, lambda: store.delete(key, version), "a delete of an older version")
            found = store.get(key)
            if found is None or found.body != b"3" or found.version != second:
                raise _no_conditions(store, "what was written is not what is read")
        finally:
            store.delete(key)
            if isinstance(store, LocalStore):
                with contextlib.suppress(OSError):
                    store.path_of(_PROBE_FOLDER).rmdir()


def default_work_dir(checkpoints_uri: str, environ: Mapping[str, str] = os.environ) -> Path:
    """The default folder of launches where checkpoints are in no folder: below the user's state folder (XDG), one for
    each store of checkpoints, since two homes may have a stream of the same name."""
    state = environ.get("XDG_STATE_HOME") or ""
    base = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    return base / "airflow-streamstate" / hashlib.sha256(checkpoints_uri.encode()).hexdigest()[:16]


def _work_dir(config: HomeConfig, checkpoints: Store) -> Path:
    if config.work_dir:
        if "://" in config.work_dir:
            raise InvalidRequestError(
                "launches must be in a folder of this machine",
                work_dir=config.work_dir,
                next_step="Give the path of a folder; where several machines launch, one that they share.",
            )
        return local_folder(config.work_dir)
    return checkpoints.root if isinstance(checkpoints, LocalStore) else default_work_dir(checkpoints.uri)


def _need_refusal(store: Store, write: Callable[[], object], what: str) -> None:
    try:
        write()
    except (ObjectExistsError, VersionConflictError):
        return
    raise _no_conditions(store, f"{what} was not refused")


def _no_conditions(store: Store, reason: str) -> InvalidRequestError:
    return InvalidRequestError(
        "conditional writes do not hold in this store",
        uri=store.uri,
        reason=reason,
        next_step="Use a store with If-None-Match on put and If-Match on put and delete, as AWS S3 has them.",
    )


def is_stream_id(name: str) -> bool:
    """Whether this is a well-formed stream id."""
    try:
        check_stream_id(name)
    except InvalidRequestError:
        return False
    return True


# One odd object never hides the other streams: the error of a poll of one stream, as it is shown next to the others.


def of_one_stream(home: Home, error: Exception) -> StreamStateError:
    """The error as that of one stream, which hides no other one.

    Raises:
        StreamStateError: it is the home that is not there, or does not answer.
    """
    if not isinstance(error, StreamStateError):
        return DataError(
            "what is recorded of this stream cannot be understood",
            reason=unexpected(error),
            next_step="Report this with the records of the stream; `streamstate status` of it shows the same.",
        )
    if not isinstance(error, DataError):
        home.presence.need()
    return error


def unexpected(error: Exception) -> str:
    """The type of an error that is none of ours, with the line where it was raised, for a report."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"unexpected {type(error).__name__}{where}"
