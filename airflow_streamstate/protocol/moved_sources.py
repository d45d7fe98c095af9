"""Sources of files whose folder was moved: the same files, under the same names below another folder.

A move is OLD -> NEW, both in the spelling of ``store.s3a.plain_uri``. No folder of a move is within another one, so a
move that is made twice is made once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations
from types import MappingProxyType

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.manifest import QuerySnapshot
from airflow_streamstate.protocol.positions import SourceIdentity

Moves = Mapping[str, str]
"""Folder before -> folder now."""
NO_MOVES: Moves = MappingProxyType({})
FILE = "file"
"""The connector of file sources; its identity is this word and the path."""


def check_moves(moves: Moves) -> None:
    """Check that each path of a file has one place before and one after these moves.

    Raises:
        InvalidRequestError: it does not.
    """
    folders = [*moves, *moves.values()]
    for folder in folders:
        _, sign, rest = folder.partition("://")
        path = rest if sign else folder
        if (not sign and not path.startswith("/")) or {"", ".", ".."} & set(path.strip("/").split("/")):
            raise InvalidRequestError(
                "a folder of a moved source is no absolute path",
                folder=folder,
                next_step="Write both as --move-source /old/folder=/new/folder, or with s3a://, without . and ..",
            )
        if any(sign in folder for sign in "*?[]{}"):
            raise InvalidRequestError(
                "a folder of a moved source is a pattern",
                folder=folder,
                next_step="Name the folder above the pattern, in both places.",
            )
    for one, other in combinations(folders, 2):
        if is_within(one, other) or is_within(other, one):
            raise InvalidRequestError(
                "one folder of the moved sources is within another one",
                folders=[one, other],
                next_step="Move the files to a place outside of the old folder; name each folder once.",
            )
    for old, new in moves.items():
        if "://" in old and "://" not in new:
            raise InvalidRequestError(
                "a folder of a moved source has no scheme, and the folder before it has one",
                folders=[old, new],
                next_step="Write the new one with its scheme, as s3a:// or file://.",
            )


def is_within(place: str, folder: str) -> bool:
    """Whether a place is a folder, or below it."""
    return place == folder or place.startswith(f"{folder}/")


def moved_place(place: str, moves: Moves) -> str:
    """A path or pattern, in the same spelling as the moves, at its new place."""
    for old, new in moves.items():
        if is_within(place, old):
            return f"{new}{place[len(old) :]}"
    return place


def place_of(identity: SourceIdentity) -> str | None:
    """The path or pattern that a file source reads; None for any other source."""
    kind, _, place = identity.what.partition(" ")
    return place if identity.adapter == FILE and kind == FILE else None


def moved_identity(identity: SourceIdentity, moves: Moves) -> SourceIdentity:
    """A source at its new place."""
    place = place_of(identity)
    return identity if place is None else replace(identity, what=f"{FILE} {moved_place(place, moves)}")


def moved_query(known: QuerySnapshot, moves: Moves) -> QuerySnapshot:
    """A query of a snapshot with its sources at their new places; the files of the snapshot are as they were."""
    if not moves:
        return known
    return replace(known, identities=tuple(moved_identity(identity, moves) for identity in known.identities))
