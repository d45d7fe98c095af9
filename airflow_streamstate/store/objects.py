"""A store on Google Cloud Storage or Azure Blob, through obstore, with the rules of the one on S3.

Each request is sent once, and what is repeated, ``writing`` and ``tries`` repeat (Law 8). Create-if-absent is a put,
never a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TypeVar

from airflow_streamstate.clock import SYSTEM_CLOCK, Clock
from airflow_streamstate.errors import ObjectMissingError, StreamStateError
from airflow_streamstate.store.answers import Answer, RequestFailure
from airflow_streamstate.store.interface import Link, ObjectInfo, StoredObject
from airflow_streamstate.store.keys import check_folder, check_key, check_prefix, is_key
from airflow_streamstate.store.objects_client import Found, ObjectsClient
from airflow_streamstate.store.objects_errors import as_error
from airflow_streamstate.store.pieces import UPLOAD_PART_BYTES, Feed, part_bytes_of
from airflow_streamstate.store.rounds import in_rounds
from airflow_streamstate.store.s3a import SparkSettings
from airflow_streamstate.store.tries import Tries, until_answered
from airflow_streamstate.store.writing import Writes

Result = TypeVar("Result")

COPY_SECONDS = 300.0
COPY_PAUSE_SECONDS = 0.5


class ObjectStore:
    """Objects of one bucket or container below one prefix.

    Args:
        make_client: opens the bucket or container.
        place: its URI, for messages until it is open.
        prefix: what every key is put under, without slashes at its ends; "" for all of it.
        clock: for pauses between tries.
        upload_part_bytes: the size of the parts that what comes in pieces is put in; what is not larger is put whole.

    Raises:
        InvalidRequestError: the prefix cannot begin a key, or the options of the client are wrong.
    """

    def __init__(
        self,
        make_client: Callable[[], ObjectsClient],
        place: str,
        prefix: str = "",
        *,
        clock: Clock = SYSTEM_CLOCK,
        upload_part_bytes: int = UPLOAD_PART_BYTES,
    ) -> None:
        self.prefix = check_folder(prefix)
        self._start = f"{prefix}/" if prefix else ""
        self._clock = clock
        self._upload_part_bytes = upload_part_bytes
        self._is_place_seen = False
        self._service, self._place = "the object store", place
        with self._reported("open", ""):
            self._client = make_client()
        self._service, self._place = self._client.service, self._client.uri
        self._writes = Writes(clock, self._get, self._report)

    @property
    def uri(self) -> str:
        return f"{self._place}/{self.prefix}" if self.prefix else self._place

    def for_spark(self) -> SparkSettings:
        with self._reported("reach by Spark", ""):
            return self._client.for_spark()

    def get(self, key: str) -> StoredObject | None:
        found = self._get(key)
        return None if found is None else found[0]

    def read_range(self, key: str, start: int, size_bytes: int) -> bytes | None:
        name = self._name(key)
        with self._reported("get", key):
            try:
                return self._unless_absent(lambda: self._client.get_range(name, start, size_bytes))
            except RequestFailure as failure:
                if failure.status == 416:  # it ends before
                    return b""
                raise

    def head(self, key: str) -> ObjectInfo | None:
        found = self._head(key)
        return None if found is None else ObjectInfo(key, found.size_bytes, found.version, found.modified_at)

    def checksum_of(self, key: str) -> str | None:
        found = self._head(key)
        return None if found is None else found.checksum

    def checksums_of(self, keys: Sequence[str]) -> list[str | None]:
        return in_rounds([partial(self.checksum_of, key) for key in keys])

    def create(self, key: str, body: bytes) -> str:
        return self._writes.create(key, body, self._putting(key, body, mode="create"))

    def replace(self, key: str, body: bytes, version: str) -> str:
        return self._writes.replace(key, body, version, self._putting(key, body, version=version))

    def put(self, key: str, body: bytes) -> str:
        return self._writes.put(key, body, self._putting(key, body))

    def put_pieces(self, key: str, pieces: Iterable[bytes], size_bytes: int) -> str:
        if size_bytes <= self._upload_part_bytes:
            return self.put(key, b"".join(pieces))
        part_bytes = part_bytes_of(size_bytes, self._upload_part_bytes)
        with self._reported("put", key, writes=True), Feed(pieces, part_bytes) as feed:
            return self._put_parts(self._name(key), feed, part_bytes)

    def list_objects(self, prefix: str) -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        return self._listed(prefix)

    def list_folders(self, folder: str) -> list[str]:
        start = self._start + (f"{check_folder(folder)}/" if folder else "")
        with self._reported("list", folder):
            whole = self._answered(lambda: self._client.folders(start.removesuffix("/")))
        names = (name.rstrip("/")[len(start) :] for name in whole)
        return sorted(name for name in names if is_key(name))

    def copy(self, source_key: str, target_key: str) -> None:
        self._copy(source_key, target_key)

    def link(self, source_key: str, target_key: str) -> bool:
        self._copy(source_key, target_key)  # by the server: no byte comes through us
        return True

    def link_many(self, links: Sequence[Link]) -> list[str]:
        for link in links:  # before the first of them is begun
            check_key(link.source_key), check_key(link.target_key)
        return in_rounds([partial(self._copy, link.source_key, link.target_key) for link in links])

    def delete(self, key: str, version: str | None = None) -> None:
        name = self._name(key)

        def send() -> str:
            try:
                self._client.delete(name, version)
            except RequestFailure as failure:
                # Azure says of what is gone that it has another version.
                is_gone = failure.answer is Answer.PRECONDITION and self._get(key) is None
                if failure.answer is not Answer.ABSENT and not is_gone:
                    raise
            return ""

        self._writes.delete(key, version, send)

    def delete_many(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(key)
        in_rounds([partial(self.delete, key) for key in keys])

    # writing

    def _putting(
        self, key: str, body: bytes, *, mode: str = "overwrite", version: str | None = None
    ) -> Callable[[str], str]:
        name = self._name(key)

        def send(write_id: str) -> str:
            condition = mode if version is None else self._client.condition_of(version)
            return self._client.put(name, body, write_id, mode=condition)

        return send

    def _put_parts(self, name: str, feed: Feed, part_bytes: int) -> str:
        """Each part is tried again by the client library, and the whole only before its first byte was asked for."""
        write_id, tries = self._clock.new_uuid(), Tries(self._clock)
        last = RequestFailure(Answer.UNKNOWN, 0, "NoVersion", "the server did not tell the version")
        while True:
            try:
                version = self._client.put_parts(name, feed, write_id, part_bytes)
                if version:
                    return version
            except RequestFailure as failure:
                last = failure
            if feed.failure is not None:
                raise feed.failure
            if feed.is_begun or not last.answer.may_pass or tries.are_over():
                break
            tries.pause()
        if not feed.is_ended:  # it was not completed, so nobody sees what was put
            raise replace(last, answer=Answer.NOT_DONE) if last.answer is Answer.UNKNOWN else last
        found = self._looked_up(name)
        if found is not None and found.write_id == write_id:
            return found.version
        if found is not None and last.answer is Answer.REFUSED:  # as a rule of a part, which is told late
            raise last
        raise replace(last, answer=Answer.UNKNOWN)  # it may land yet, or was written over since (Law 8)

    def _looked_up(self, name: str) -> Found | None:
        try:
            return self._answered(lambda: self._client.head(name))
        except RequestFailure:
            return None

    def _report(self, act: str, key: str, failure: RequestFailure, doubtful: bool) -> StreamStateError:
        return as_error(failure, service=self._service, action=act, place=self._place, key=key, doubtful=doubtful)

    def _copy(self, source_key: str, target_key: str) -> str:
        """Copy one object; the checksum of the copy."""
        source, target = self._name(source_key), self._name(target_key)
        if source == target:
            found = self._head(source_key)
            if found is None:
                raise _missing(source_key)
            return found.checksum
        with self._reported("copy", target_key, writes=True):
            try:
                self._answered(lambda: self._client.copy(source, target))
            except RequestFailure as failure:
                if failure.answer is Answer.ABSENT:
                    raise _missing(source_key) from None
                raise
            return self._copied(target)

    def _copied(self, target: str) -> str:
        """The checksum of a copy, when the server has made it: Azure may go on after its answer."""
        until = self._clock.monotonic_seconds() + COPY_SECONDS
        while True:
            found = self._answered(lambda: self._client.head(target))
            if found.is_copied:
                return found.checksum
            if self._clock.monotonic_seconds() >= until:
                raise RequestFailure(Answer.UNKNOWN, 0, "CopyPending", "the server is still copying")
            self._clock.sleep(COPY_PAUSE_SECONDS)

    # reading

    def _listed(self, prefix: str) -> Iterator[ObjectInfo]:
        """In the order of keys, whatever the server's: one with folders of its own lists them in another."""
        found: list[ObjectInfo] = []
        folder = (self._start + prefix).rpartition("/")[0]
        with self._reported("list", prefix):
            for item in self._answered(lambda: list(chain.from_iterable(self._client.pages(folder)))):
                name = str(item["path"])
                key = name[len(self._start) :]
                if name.startswith(self._start + prefix) and is_key(key):
                    found.append(ObjectInfo(key, int(item["size"]), self._client.version_in(item)))
        yield from self._without_markers(sorted(found, key=lambda info: info.key))

    def _without_markers(self, infos: Sequence[ObjectInfo]) -> Iterator[ObjectInfo]:
        """Hadoop's connectors mark folders by empty objects whose names end in a slash, which obstore leaves out."""
        folders = {info.key.rpartition("/")[0] for info in infos}
        for info in infos:
            if info.size_bytes == 0 and (info.key in folders or self.head(info.key) is None):
                continue
            yield info

    def _get(self, key: str) -> tuple[StoredObject, str] | None:
        name = self._name(key)
        with self._reported("get", key):
            found = self._unless_absent(lambda: self._client.get(name))
        return None if found is None else (StoredObject(key, found[0], found[1]), found[2])

    def _head(self, key: str) -> Found | None:
        name = self._name(key)
        with self._reported("head", key):
            try:
                return self._answered(lambda: self._client.head(name))
            except RequestFailure as failure:
                if failure.answer is Answer.ABSENT and (self._is_place_seen or not failure.is_mute):
                    return None
                if failure.answer is not Answer.ABSENT and not failure.is_mute:
                    raise
        # Answers to HEAD have no body: no bucket and no such object look the same. A GET says which it is.
        with self._reported("get", key):
            if self._unless_absent(lambda: self._client.get(name)) is None:
                return None
            return self._answered(lambda: self._client.head(name))

    def _unless_absent(self, send: Callable[[], Result]) -> Result | None:
        """The answer to a GET; None where there is no object, which means a place that is there."""
        try:
            return self._answered(send)
        except RequestFailure as failure:
            if failure.answer is not Answer.ABSENT:
                raise
            self._is_place_seen = True
            return None

    def _answered(self, send: Callable[[], Result]) -> Result:
        result = until_answered(self._clock, send)
        self._is_place_seen = True
        return result

    def _name(self, key: str) -> str:
        return self._start + check_key(key)

    @contextmanager
    def _reported(self, action: str, key: str, *, writes: bool = False) -> Iterator[None]:
        try:
            yield
        except RequestFailure as failure:
            doubtful = writes and failure.answer is Answer.UNKNOWN
            raise self._report(action, key, failure, doubtful) from failure


def _missing(source_key: str) -> ObjectMissingError:
    return ObjectMissingError("there is no object to copy or link", key=source_key)
