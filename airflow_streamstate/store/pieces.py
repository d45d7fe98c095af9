"""Bytes that come piece by piece, put with every store: where the store can, only some of them are held at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, Self, runtime_checkable

from airflow_streamstate.store.interface import Store

UPLOAD_PART_BYTES = 8 * 1024**2
"""What goes to a server in one request; what is not larger goes whole."""
UPLOADS_AT_ONCE = 4
"""Parts under way at once; as many are held, and two more that are being made."""
MOST_PARTS = 10_000
"""No server takes more for one object, so the parts of a very large one are larger."""


@runtime_checkable
class PutsPieces(Protocol):
    """A store that puts bytes as they come."""

    def put_pieces(self, key: str, pieces: Iterable[bytes], size_bytes: int) -> str:
        """``Store.put`` of bytes that come one piece after the other; the version.

        What ``pieces`` raises is raised, and nothing was changed then.

        Args:
            key: its key.
            pieces: of any size; asked for from one thread, each once.
            size_bytes: of all of them.
        """


def put_pieces(store: Store, key: str, pieces: Iterable[bytes], size_bytes: int) -> str:
    """As ``PutsPieces.put_pieces``; raises what ``Store.put`` raises.

    Raises:
        ValueError: there were more bytes than that, or fewer; nothing was changed.
    """
    exact = _exactly(pieces, size_bytes)
    if isinstance(store, PutsPieces):
        return store.put_pieces(key, exact, size_bytes)
    return store.put(key, b"".join(exact))


def in_parts(pieces: Iterable[bytes], part_bytes: int) -> Iterator[bytes]:
    """The same bytes in parts of one size, of which the last may be smaller."""
    held = bytearray()
    for piece in pieces:
        held += piece
        while len(held) >= part_bytes:
            yield bytes(memoryview(held)[:part_bytes])
            del held[:part_bytes]
    if held:
        yield bytes(held)


class Feed:
    """Parts for somebody who asks for them and says little of what went wrong; to be closed by ``with``.

    They are made in a thread of their own: whoever asks may be in the middle of a call that bears no other one (as
    obstore is, which would panic), while pieces are read from a store as a rule.

    Args:
        pieces, part_bytes: as of ``in_parts``.

    Attributes:
        is_begun: whether any was asked for.
        is_ended: whether the last one was given.
        failure: what the pieces raised.
    """

    def __init__(self, pieces: Iterable[bytes], part_bytes: int) -> None:
        self._parts = in_parts(pieces, part_bytes)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="streamstate-feed")
        self.is_begun = self.is_ended = False
        self.failure: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True)

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        self.is_begun = True
        try:
            return self._pool.submit(next, self._parts).result()
        except StopIteration:
            self.is_ended = True
            raise
        except BaseException as failure:
            self.failure = failure
            raise


def part_bytes_of(size_bytes: int, part_bytes: int = UPLOAD_PART_BYTES) -> int:
    """How large the parts of an object of this size are."""
    return max(part_bytes, -(-size_bytes // MOST_PARTS))


def _exactly(pieces: Iterable[bytes], size_bytes: int) -> Iterator[bytes]:
    count = 0
    for piece in pieces:
        count += len(piece)
        if count > size_bytes:
            break
        yield piece
    if count != size_bytes:
        raise ValueError(f"{size_bytes} bytes were to come, and not {count}")
