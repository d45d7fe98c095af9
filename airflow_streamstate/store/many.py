"""Many objects at once, with every store: in few requests where the store can, one by one where it cannot."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from airflow_streamstate.errors import OutcomeUnknownError
from airflow_streamstate.store.interface import Link, ManyAtOnce, Store

LINK_TRIES = 3


def link_many(store: Store, links: Iterable[Link]) -> list[str]:
    """``Store.link`` each of them; the checksums of the targets, "" where the store keeps none.

    Raises:
        ObjectMissingError: a source is not there (any more).
        UnavailableError, OutcomeUnknownError: as ``Store.link``; the same call may be repeated.
    """
    wanted = list(links)
    if isinstance(store, ManyAtOnce):
        return store.link_many(wanted)
    for link in wanted:
        _link(store, link)
    return [""] * len(wanted)


def _link(store: Store, link: Link) -> None:
    for _ in range(LINK_TRIES - 1):
        try:
            store.link(link.source_key, link.target_key)
            return
        except OutcomeUnknownError:
            continue  # linking the same bytes again is the same as finding out (Law 8)
    store.link(link.source_key, link.target_key)


def delete_many(store: Store, keys: Iterable[str]) -> None:
    """``Store.delete`` each of them, in this order where the store has no better way."""
    wanted = list(keys)
    if isinstance(store, ManyAtOnce):
        store.delete_many(wanted)
        return
    for key in wanted:
        store.delete(key)


def checksum_of(store: Store, key: str) -> str | None:
    """A checksum as ``ManyAtOnce.checksum_of`` describes it; a store that keeps none is read. None: no object."""
    if isinstance(store, ManyAtOnce):
        return store.checksum_of(key)
    stored = store.get(key)
    return None if stored is None else f"sha256:{hashlib.sha256(stored.body).hexdigest()}"


def checksums_of(store: Store, keys: Sequence[str]) -> list[str | None]:
    """``checksum_of`` each, in the order of the keys."""
    return store.checksums_of(keys) if isinstance(store, ManyAtOnce) else [checksum_of(store, key) for key in keys]
