"""Files on their way into the data folder of a snapshot, and what its manifest says of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from airflow_streamstate.errors import ObjectMissingError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.manifest import FileEntry
from airflow_streamstate.snapshot.checksums import companion_of
from airflow_streamstate.snapshot.data import crc32_of
from airflow_streamstate.snapshot.meanwhile import until_done
from airflow_streamstate.store.base import Link, ManyAtOnce, Store
from airflow_streamstate.store.transfer import link_many

BUFFER_BYTES = 1 << 18
LINKS_AT_ONCE = 256
"""Where a link is a copy, so many are under way or waiting at once."""


class DataFolder:
    """Where the files of one query of a snapshot are put.

    Args:
        checkpoints: the store.
        folder: the key of the folder.
        go_on: called again and again while files are linked.
    """

    def __init__(self, checkpoints: Store, folder: str, go_on: Callable[[], None] = lambda: None) -> None:
        self._checkpoints = checkpoints
        self._folder = folder
        self._go_on = go_on
        self._place = ""

    def take(self, keys: Sequence[str], paths: Sequence[str]) -> tuple[FileEntry, ...]:
        """Link files, without a byte through us; what lies there now, not what lay where they came from.

        Args:
            keys: of the files.
            paths: of each in the folder.

        Raises:
            ObjectMissingError: one of them is not there (any more).
            UnavailableError: it cannot be linked now.
        """
        checksums = self._put(keys, paths)
        sizes = {info.key: info.size_bytes for info in self._checkpoints.list_objects(f"{self._folder}/")}
        named, buffer = set(paths), bytearray(BUFFER_BYTES)
        entries = []
        for path, checksum in zip(paths, checksums, strict=True):
            self._go_on()
            key = f"{self._folder}/{path}"
            if key not in sizes:
                raise gone(key)
            companion = companion_of(path)
            crc32 = self._companion_crc32(companion, buffer) if companion in named else ""
            entries.append(FileEntry(path, sizes[key], crc32, checksum, shared_from=self._place))
        return tuple(entries)

    def _put(self, keys: Sequence[str], paths: Sequence[str]) -> list[str]:
        links = [Link(key, f"{self._folder}/{path}") for key, path in zip(keys, paths, strict=True)]
        at_once = LINKS_AT_ONCE if isinstance(self._checkpoints, ManyAtOnce) else 1
        checksums: list[str] = []
        for start in range(0, len(links), at_once):
            checksums += self._link(links[start : start + at_once])
            self._go_on()
        return checksums

    def _link(self, links: Sequence[Link]) -> list[str]:
        """Some files; a server may be at a large one for as long as it likes, and is asked from a thread of its own."""
        if not isinstance(self._checkpoints, ManyAtOnce):
            return link_many(self._checkpoints, links)
        with ThreadPoolExecutor(1, "streamstate-link") as pool:
            return until_done(pool.submit(link_many, self._checkpoints, links), self._go_on)

    def _companion_crc32(self, path: str, buffer: bytearray) -> str:
        crc32 = crc32_of(self._checkpoints, f"{self._folder}/{path}", buffer)
        if crc32 is None:
            raise gone(f"{self._folder}/{path}")
        return crc32


class ReferredFolder(DataFolder):
    """The checkpoint of a query itself, whose files a snapshot only names: nothing of them is kept apart.

    Args:
        checkpoints: the store.
        stream_id, deployment_id, query_name: whose checkpoint it is.
    """

    def __init__(self, checkpoints: Store, stream_id: str, deployment_id: str, query_name: str) -> None:
        super().__init__(checkpoints, layout.checkpoint_folder(stream_id, deployment_id, query_name))
        self._place = layout.checkpoint_place(deployment_id)

    def _put(self, keys: Sequence[str], paths: Sequence[str]) -> list[str]:  # noqa: ARG002 - they lie where they are
        if not isinstance(self._checkpoints, ManyAtOnce):
            return [""] * len(keys)
        return [checksum or "" for checksum in self._checkpoints.checksums_of(list(keys))]


def gone(key: str) -> ObjectMissingError:
    """A file that is not there any more: the query has moved on."""
    return ObjectMissingError("a file went while it was being captured", key=key)
