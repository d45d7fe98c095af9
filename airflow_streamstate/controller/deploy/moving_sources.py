"""Sources of files that lie elsewhere since the snapshot (``--move-source``): which moves a start makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from airflow_streamstate.checkpoint.moved_sources import plain_moves
from airflow_streamstate.controller.decide import Start
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.manifest import QuerySnapshot, SnapshotManifest
from airflow_streamstate.protocol.moved_sources import is_within, place_of


def moving(start: Start, asked: Mapping[str, str], manifest: SnapshotManifest | None) -> Start:
    """The start with the moves that are still to be made; a file or a DAG says them for ever.

    Args:
        asked: folder before -> folder now.
        manifest: the snapshot that it starts from; None for a start with nothing.

    Raises:
        InvalidRequestError: no source of the snapshot reads from the folder, or some read from the new one already.
    """
    if not asked or manifest is None or start.plan.snapshot_id is None:
        return start
    if start.plan.offsets or start.plan.begins_at is not None:
        raise InvalidRequestError(
            "a start at other offsets cannot move a source as well",
            folders=sorted(asked),
            next_step="Move it by one deployment, and begin elsewhere by the next one.",
        )
    places = {name: _places(query) for name, query in manifest.queries.items()}
    moves = {}
    for old, new in plain_moves(asked).items():
        at_old, at_new = (
            {name: [place for place in found if is_within(place, folder)] for name, found in places.items()}
            for folder in (old, new)
        )
        for name in places:
            if at_old[name] and at_new[name]:
                raise InvalidRequestError(
                    "a query reads from the old folder, and from the new one as well",
                    query_name=name,
                    old=at_old[name],
                    new=at_new[name],
                    next_step="Move the files to a folder that the query does not read yet, or name a longer OLD.",
                )
        if not any(at_old.values()) and not any(at_new.values()):
            raise InvalidRequestError(
                "no file source of the snapshot reads from this folder",
                folder=old,
                snapshot_id=manifest.snapshot_id,
                sources=sorted({place for found in places.values() for place in found}),
                next_step="Name the folder of one of these, or one above it, as OLD in --move-source OLD=NEW.",
            )
        if any(at_old.values()):
            moves[old] = new
    return start if not moves else replace(start, plan=replace(start.plan, move_sources=moves))


def _places(query: QuerySnapshot) -> list[str]:
    return [place for place in map(place_of, query.identities) if place is not None]
