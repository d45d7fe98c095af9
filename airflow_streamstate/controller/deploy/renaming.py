"""Queries that the script names otherwise than the stream: the stream keeps the name that a query began with.

A rename goes on in every later deployment, until another one takes its place: the script keeps the new name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from airflow_streamstate.controller.decide import Start
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.records import StartPlan


def renaming(
    start: Start, before: StartPlan | None, asked: Mapping[str, str], manifest: SnapshotManifest | None
) -> Start:
    """The start with the names that its script gives the queries of its snapshot.

    Args:
        before: how the deployment before started; None for a stream's first.
        asked: what the request renames.
        manifest: the snapshot that it starts from; None for a start with nothing.

    Raises:
        InvalidRequestError: the snapshot has no such query, or has another one of the new name.
    """
    if manifest is None or start.plan.snapshot_id is None:
        return start
    known = {} if before is None else before.rename_queries
    names = {old: new for old, new in known.items() if old in manifest.queries}
    for given, new in sorted(asked.items()):
        old = _known(given, names, manifest)
        if old is None and _known(new, names, manifest) is not None:
            continue  # a file or a DAG says it for ever
        if old is None:
            raise InvalidRequestError(
                "the snapshot has no query of this name to rename",
                query_name=given,
                snapshot_id=manifest.snapshot_id,
                queries=sorted(manifest.queries),
                next_step="Name one of these as OLD in --rename-query OLD=NEW.",
            )
        names.pop(old, None)
        other = _known(new, names, manifest)
        if other not in (None, old):
            raise InvalidRequestError(
                "another query of the snapshot has the new name already",
                query_name=given,
                new_name=new,
                snapshot_id=manifest.snapshot_id,
                next_step="Take a name that no query of the stream has.",
            )
        if new != old:
            names[old] = new
    return start if not names else replace(start, plan=replace(start.plan, rename_queries=names))


def _known(name: str, names: Mapping[str, str], manifest: SnapshotManifest) -> str | None:
    """The query of the snapshot that a script calls by this name; None for none."""
    for old, new in names.items():
        if new == name:
            return old
    return name if name in manifest.queries else None
