"""Whether the home can be reached: asked before an absent object is believed, and before anything is written.

A home that is unmounted, renamed, emptied or recreated answers as an empty one. Two objects distinguish them: the
home's record (``home.json``), which the first deploy creates before any other object; for a driver its own claim.

The ``protocol`` of the home's record is that of the whole home. A home of a different protocol is refused before
anything else of it is read, and nothing is ever written there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow_streamstate.clock import Clock
from airflow_streamstate.errors import (
    DataError,
    HomeAwayError,
    HomeFormatError,
    HomeNotFoundError,
    ObjectExistsError,
    ObjectMissingError,
    OutcomeUnknownError,
    StoreRefusedError,
    StreamStateError,
    UnsupportedVersionError,
    VersionConflictError,
)
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.codec import (
    NEWEST_PROTOCOL,
    OLDEST_PROTOCOL,
    Message,
    encoded,
    from_bytes,
    from_json,
    object_in,
    to_json,
)
from airflow_streamstate.protocol.ids import is_deployment_id, is_id
from airflow_streamstate.protocol.records import Claim, HomeRecord
from airflow_streamstate.protocol.signing import SigningKeys
from airflow_streamstate.store.base import ObjectInfo, Store, StoredObject, bounded_get
from airflow_streamstate.store.local import LocalStore
from airflow_streamstate.store.transfer import keys_below

SEEN_SECONDS = 5.0
"""For this long after the home was seen on a server, writes and empty lists do not check it again."""
_UNREADABLE = "unreadable"


class HomePresence:
    """Whether one home can be reached, as one process knows it.

    Args:
        home: the store of the control objects.
        is_open: accept whatever is there, until ``bind`` is called: for a process that may create a home.
        is_expected: the home is known to have existed, although this process has not seen it: for a driver.
        keys: of the home, as in ``control.objects.Cells``.
    """

    def __init__(
        self,
        home: Store,
        clock: Clock,
        *,
        is_open: bool = False,
        is_expected: bool = False,
        keys: SigningKeys | None = None,
    ) -> None:
        self.home = home
        self.clock = clock
        self._keys = keys
        self._is_open = is_open
        self._is_known = is_expected
        self._is_bound = False
        self._claim: Claim | None = None
        self._home_id: str | None = None
        self._has_written = is_expected
        self._is_readable = False
        self._fresh_seconds = 0.0 if isinstance(home, LocalStore) else SEEN_SECONDS
        self._seen_at_seconds: float | None = None

    @property
    def is_bound(self) -> bool:
        """Whether only the home that ``bind`` has seen counts."""
        return self._is_bound

    def bind(self, claim: Claim) -> None:
        """From now on only the present home counts, known by its record, or by this claim of the driver in it.

        Raises:
            UnavailableError, StoreRefusedError: the store does not answer.
        """
        found = self.record_id()
        self._claim, self._home_id = claim, None if found == _UNREADABLE else found
        self._is_bound = self._is_known = True
        self.note_seen()

    def note_seen(self) -> None:
        """The home was seen a moment ago."""
        self._is_known = True
        if self._fresh_seconds:
            self._seen_at_seconds = self.clock.monotonic_seconds()

    def note_written(self) -> None:
        """The home took a write."""
        self._has_written = True

    @property
    def took_writes(self) -> bool:
        """Whether a refused write may pass later: the home took writes before, or is known to have."""
        return self._has_written or self._is_bound

    def is_there(self) -> bool:
        """Look whether the home is there.

        Raises:
            HomeFormatError: it is, and is not read by this version.
            HomeAwayError: it was there before, and the store denies access now.
            UnavailableError, StoreRefusedError: the store does not answer.
        """
        if self._is_open and not self._is_bound:
            return True
        with self.known():
            is_there = self._look()
        if is_there:
            self.note_seen()
        return is_there

    def need(self) -> None:
        """Check that the home is there.

        Raises:
            HomeFormatError: it is, and is not read by this version.
            HomeAwayError: it is not, and was before; or another home is there.
            HomeNotFoundError: it is not, and this process has never seen it.
            UnavailableError, StoreRefusedError: the store does not answer.
        """
        if not self.is_there():
            raise self._absent()

    def need_readable(self) -> None:
        """Check once that this version reads the home, before anything of it is read or written.

        Raises:
            HomeFormatError: it does not.
            UnavailableError, StoreRefusedError: the store does not answer.
        """
        if self._is_readable or self._is_bound or self._is_open:
            return
        with self.known():
            self._look()

    def need_seen(self) -> None:
        """Check that the home is there, or was some seconds ago: before each write; raises as ``need``."""
        seen_at = self._seen_at_seconds
        if seen_at is None or self.clock.monotonic_seconds() - seen_at >= self._fresh_seconds:
            self.need()

    def judge(self, *, is_absent: bool) -> None:
        """Believe a read: an object shows that the home is there (but not to a driver, whose home may have been
        exchanged),
        and its absence counts only in a home that is there; raises as ``need``.
        """
        if not is_absent:
            if not self._is_bound:
                self.note_seen()
        else:
            self.need()

    def begin(self, created_by: str, *, has_stream: bool = False) -> None:
        """Make this store a home if it is none.

        Args:
            has_stream: a stream was read in it, so it must exist.

        Raises:
            HomeFormatError: it is one that this version does not read.
            HomeAwayError, HomeNotFoundError: it was there before, and is not any more.
            UnavailableError, OutcomeUnknownError, StoreRefusedError: it cannot be written.
        """
        self._is_open = False
        if not self._look():
            self.refuse_to_begin(has_stream=has_stream)
            if isinstance(self.home, LocalStore):
                self.home.make_root()
            key = layout.home_key()
            plain = to_json(HomeRecord(self.clock.new_uuid(), self.clock.now(), created_by))
            try:
                self.home.create(key, encoded(plain if self._keys is None else self._keys.signed(key, plain)))
            except (ObjectExistsError, OutcomeUnknownError):
                if self.record_id() is None:
                    raise
            self.note_written()
        self.note_seen()

    def refuse_to_begin(self, *, has_stream: bool = False) -> None:
        """Refuse to create a home in the place of one that existed before.

        Raises:
            HomeAwayError: this process has worked with it.
            HomeNotFoundError: a stream was read in it.
        """
        if self._is_known or has_stream:
            raise self._absent()

    def record_id(self) -> str | None:
        """The id in the home's record; None if it does not exist. Raises HomeFormatError."""
        try:
            return self.identity()
        except DataError:
            return _UNREADABLE

    def identity(self) -> str | None:
        """As ``record_id``; raises DataError, too, where the record cannot be read or believed."""
        key = layout.home_key()
        stored = bounded_get(self.home, key, Message.most_bytes)
        if stored is None:
            return None
        plain = object_in(stored.body, key=key)
        try:
            home_id = from_json(plain, key=key, expected=HomeRecord).home_id
        except UnsupportedVersionError:
            raise self._of_another_version(plain.get("protocol")) from None
        if self._keys is not None:
            self._keys.check(key, plain)
        return home_id

    def has_own_record(self) -> bool:
        """Whether the record of the home is the one that ``bind`` has seen; False if ``bind`` saw none."""
        try:
            return self._home_id is not None and self.record_id() == self._home_id
        except HomeFormatError:
            return False

    def has_own_claim(self) -> bool:
        """Whether this driver's claim is in the home; a damaged claim is not another driver's and counts as its own
        (Law 7).
        """
        if self._claim is None:
            return False
        try:
            there = self._read_claim(self._claim)
        except DataError:
            return True
        return there is not None and there.write_id == self._claim.write_id

    def claim_there(self) -> Claim | None:
        """The claim under the key of this driver's own; None if it is absent or unreadable."""
        try:
            return None if self._claim is None else self._read_claim(self._claim)
        except DataError:
            return None

    def _read_claim(self, own: Claim) -> Claim | None:
        key = layout.claim_key(own.stream_id, own.deployment_id, own.attempt)
        stored = bounded_get(self.home, key, Message.most_bytes)
        return None if stored is None else from_bytes(stored.body, key=key, expected=Claim)

    @contextmanager
    def known(self) -> Iterator[None]:
        """Turn StoreRefusedError, from a store that gave access before, into HomeAwayError."""
        try:
            yield
        except StoreRefusedError as error:
            if not self._is_known:
                raise
            raise self._away(str(error)) from error

    def _look(self) -> bool:
        if self._is_bound:
            return self.has_own_record() or self.has_own_claim()
        if self._has_record():
            return True
        key = self._key_of_a_stream()
        if key is None:
            return False
        if self._has_record():  # the first deploy, which writes it before all else, started after the first poll
            return True
        raise self._without_record(key)

    def _has_record(self) -> bool:
        home_id = self.record_id()
        self._is_readable = home_id not in (None, _UNREADABLE)
        return home_id is not None

    def _key_of_a_stream(self) -> str | None:
        """The key of a register or of a deployment's record; None without one. Folders without one do not count: Spark
        recreates them where a checkpoint was."""
        for stream_id in filter(is_id, self.home.list_folders("")):
            names = filter(is_deployment_id, self.home.list_folders(layout.deployments_folder(stream_id)))
            specs = (layout.spec_key(stream_id, name) for name in names)
            for key in (layout.register_key(stream_id), *specs):
                if self.home.head(key) is not None:
                    return key
        return None

    def _without_record(self, key: str) -> HomeFormatError:
        """The error of a home that lost its record, or of one of before there were any, by an object of its streams."""
        stored = bounded_get(self.home, key, Message.most_bytes)
        try:
            protocol = None if stored is None else object_in(stored.body, key=key).get("protocol")
        except DataError:
            protocol = None
        if protocol not in range(OLDEST_PROTOCOL, NEWEST_PROTOCOL + 1):
            return self._of_another_version(protocol)
        record = HomeRecord(self.clock.new_uuid(), self.clock.now(), "written by hand")
        return HomeFormatError(
            "this home has streams and no record, so it is not known which version of airflow-streamstate wrote it",
            home=self.home.uri,
            key=layout.home_key(),
            record=encoded(to_json(record)).decode(),
            next_step=f"Restore {layout.home_key()} from a copy of the home; without one, write to it what is shown as"
            " record. Or give another home (--home). Nothing in it was changed.",
        )

    def _of_another_version(self, protocol: object) -> HomeFormatError:
        return HomeFormatError(
            "this home was written by another version of airflow-streamstate, and this one does not read it",
            home=self.home.uri,
            protocol=protocol,
            own_protocols=f"{OLDEST_PROTOCOL}..{NEWEST_PROTOCOL}",
            next_step="Use the version that wrote it, or give another home (--home); nothing in it was changed.",
        )

    def _absent(self) -> StreamStateError:
        if self._is_known:
            return self._away("what is there is empty, or another home")
        return HomeNotFoundError(
            "there is no home here",
            home=self.home.uri,
            next_step="See that the URI is right, its disk mounted, its bucket the same; only a first `deploy` (or"
            " `adopt`, `home restore`) makes a home.",
        )

    def _away(self, reason: str) -> HomeAwayError:
        return HomeAwayError(
            "the home is not there",
            home=self.home.uri,
            reason=reason,
            next_step="Mount its disk, bring its folder or bucket back, or give access again; what runs continues, and"
            " nothing has to be started again.",
        )


class GuardedHome:
    """The store of a home: absence is believed, and anything written, only while the home is there.

    It implements ``store.base.Store``; each method also raises what ``HomePresence.need`` raises.
    """

    def __init__(self, presence: HomePresence) -> None:
        self._presence = presence
        self._home = presence.home

    @property
    def uri(self) -> str:
        return self._home.uri

    @property
    def unguarded(self) -> Store:
        """The store itself."""
        return self._home

    def get(self, key: str) -> StoredObject | None:
        with self._reading():
            found = self._home.get(key)
        self._presence.judge(is_absent=found is None)
        return found

    def get_within(self, key: str, most_bytes: int) -> StoredObject | None:
        with self._reading():
            found = bounded_get(self._home, key, most_bytes)
        self._presence.judge(is_absent=found is None)
        return found

    def head(self, key: str) -> ObjectInfo | None:
        with self._reading():
            found = self._home.head(key)
        self._presence.judge(is_absent=found is None)
        return found

    def create(self, key: str, body: bytes) -> str:
        with self._writing():
            return self._home.create(key, body)

    def replace(self, key: str, body: bytes, version: str) -> str:
        with self._writing():
            return self._home.replace(key, body, version)

    def put(self, key: str, body: bytes) -> str:
        with self._writing():
            return self._home.put(key, body)

    def list_objects(self, prefix: str) -> Iterator[ObjectInfo]:
        is_empty = True
        with self._reading():
            for info in self._home.list_objects(prefix):
                is_empty = False
                yield info
        if is_empty:
            self._presence.need_seen()

    def list_keys(self, prefix: str) -> list[str]:
        """As ``store.base.ListsKeys``."""
        with self._reading():
            found = keys_below(self._home, prefix)
        if not found:
            self._presence.need_seen()
        return found

    def list_folders(self, folder: str) -> list[str]:
        with self._reading():
            found = self._home.list_folders(folder)
        if not found:
            self._presence.need_seen()
        return found

    def copy(self, source_key: str, target_key: str) -> None:
        with self._writing():
            self._home.copy(source_key, target_key)

    def link(self, source_key: str, target_key: str) -> bool:
        with self._writing():
            return self._home.link(source_key, target_key)

    def delete(self, key: str, version: str | None = None) -> None:
        with self._writing():
            self._home.delete(key, version)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        self._presence.need_readable()
        try:
            yield
        except StoreRefusedError:
            # It may concern one object only.
            self._presence.need()
            raise

    @contextmanager
    def _writing(self) -> Iterator[None]:
        self._presence.need_readable()
        self._presence.need_seen()
        try:
            yield
        except (VersionConflictError, ObjectMissingError):
            self._presence.need()
            raise
        except StoreRefusedError:
            if self._presence.took_writes:
                with self._presence.known():
                    raise
            raise
        self._presence.note_written()
