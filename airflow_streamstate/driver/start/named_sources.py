"""Maps the stored offsets to sources that the script named (``.name(…)``, Spark 4.2+).

Spark finds the offset of such a source by its name alone. It silently reads a renamed source from its beginning, and
gives a source that took over another one's name that one's offset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from airflow_streamstate.checkpoint.entries import SOURCES_NAMED, OffsetEntry
from airflow_streamstate.checkpoint.guards import OFFSET_LOG_FORMAT
from airflow_streamstate.checkpoint.spark_versions import OFFSET_LOG_2_SINCE, line_of
from airflow_streamstate.connectors.source import NO_OFFSET
from airflow_streamstate.driver.attempt.ports import StartableQuery
from airflow_streamstate.driver.attempt.source_book import KnownSource
from airflow_streamstate.driver.start.offset_mapping import MappedOffsets, may_be_one, said_of_left
from airflow_streamstate.errors import IncompatibleUpgradeError, UnsupportedCheckpointError
from airflow_streamstate.protocol.manifest import QuerySnapshot
from airflow_streamstate.protocol.positions import SourceIdentity


def source_keys(query_name: str, startable: StartableQuery, lines_count: int, spark_version: str) -> tuple[str, ...]:
    """The keys under which the session's Spark writes the offsets of a query's sources; () for offset log 1.

    Args:
        spark_version: of the session; one without offset log 2 ignores the settings.

    Raises:
        UnsupportedCheckpointError: the plan does not show the names of its sources, or as ``refuse_source_twice``.
    """
    facts, line = startable.facts, line_of(spark_version)
    if line is not None and line < OFFSET_LOG_2_SINCE:
        return ()
    if facts.are_sources_named:
        return tuple(source.name for source in facts.sources)
    conf = startable.session_conf((OFFSET_LOG_FORMAT, SOURCES_NAMED))
    if conf.get(SOURCES_NAMED, "").lower() == "true":
        raise UnsupportedCheckpointError(
            "the plan of this query does not show the names of its sources",
            query_name=query_name,
            next_step="Deploy it without names.",
        )
    if conf.get(OFFSET_LOG_FORMAT, "1").strip() != "2":
        return ()
    refuse_source_twice(query_name, startable)
    return tuple(map(str, range(lines_count)))


def refuse_source_twice(query_name: str, startable: StartableQuery) -> None:
    """Refuse an unnamed source that stands twice in a plan, for which offset log 2 has one offset only.

    Raises:
        UnsupportedCheckpointError: there is one.
    """
    facts = startable.facts
    folders = [source.folder for source in facts.sources]
    if len(set(folders)) != len(folders):
        raise UnsupportedCheckpointError(
            "a source that stands twice in the plan is not supported in offset log 2",
            query_name=query_name,
            sources=[source.planned.format for source in facts.sources],
            next_step=f"Read it twice, by two readers; or set {OFFSET_LOG_FORMAT} to 1.",
        )


def has_names(sources: Sequence[KnownSource]) -> bool:
    """Whether the script named its sources."""
    return any(source.source.name for source in sources)


def check_same_names(
    query_name: str,
    known: QuerySnapshot,
    last: OffsetEntry,
    sources: Sequence[KnownSource],
    startable: StartableQuery,
) -> None:
    """Check that a restore finds each source under its name and, where the query has state, in its place.

    Args:
        last: the last entry of the snapshot's query.

    Raises:
        IncompatibleUpgradeError: a source was renamed or moved.
        UnsupportedCheckpointError: as ``refuse_source_twice``.
    """
    names = last.source_names
    if last.version == "v2" and not names:
        refuse_source_twice(query_name, startable)
    now = tuple(source.source.name for source in sources if source.source.name)
    if not sources or (not names and not now):
        return
    places = {identity.log_folder: names[at] for at, identity in enumerate(known.identities) if at < len(names)}
    has_moved = startable.facts.stateful and any(
        source.source.log_folder in places and places[source.source.log_folder] != source.source.name
        for source in sources
    )
    if tuple(names) != now or has_moved:
        raise IncompatibleUpgradeError(
            "the sources of this version have other names than those of the snapshot, and Spark would read them anew"
            if tuple(names) != now
            else "the sources of this version stand in another order, and state goes by place",
            query_name=query_name,
            sources=[_called(source.identity, source.source.name) for source in sources],
            snapshot_sources=list(names) or "without names",
            next_step="Keep names and order; or drain the old version and deploy again: a seed gives each source its"
            " own position, also under another name.",
        )


def told_apart(
    known: QuerySnapshot, names: Sequence[str], sources: Sequence[KnownSource]
) -> tuple[QuerySnapshot, tuple[KnownSource, ...]]:
    """The snapshot and the sources of the new plan, with the name put into the identity of each source that kept it.

    ``map_offsets`` then prefers the source of the same name, and takes another one only if the name is gone.

    Args:
        names: of the snapshot's sources, by offset; empty where they had none.
    """
    identities, told = list(known.identities), list(sources)
    for at, source in enumerate(sources):
        number = names.index(source.source.name) if source.source.name in names else -1
        if number >= 0 and may_be_one(known.identities[number], source.identity):
            what = _called(source.identity, source.source.name)
            identities[number] = replace(known.identities[number], what=what)
            told[at] = replace(source, identity=replace(source.identity, what=what))
    return replace(known, identities=tuple(identities)), tuple(told)


def map_offsets_by_name(
    query_name: str, known: QuerySnapshot, names: Sequence[str], sources: Sequence[KnownSource]
) -> MappedOffsets:
    """Give each source the offset of its name, where no connector knows all of the sources.

    Args:
        names: of the snapshot's sources, by offset; empty where they had none.

    Raises:
        IncompatibleUpgradeError: one of the sides has no names; one name is new and another one gone, which may be a
            renamed source; or a name is now that of another source.
    """
    lines, identities = known.position.end_offsets, known.identities
    if not names or not has_names(sources):
        raise IncompatibleUpgradeError(
            "sources of a kind that no connector knows had no names before, or have none now",
            query_name=query_name,
            sources=[source.source.name or source.planned.format for source in sources],
            snapshot_sources=list(names) or "without names",
            next_step="Keep the names, or go on without any.",
        )
    now = [source.source.name for source in sources]
    new, left = [name for name in now if name not in names], [name for name in names if name not in now]
    numbers = [names.index(name) if name in names else None for name in now]
    others = [
        name
        for name, number, source in zip(now, numbers, sources, strict=True)
        if number is not None
        and number < len(identities)
        and identities[number].what
        and source.identity.what not in ("", identities[number].what)
    ]
    if (new and left) or others:
        raise IncompatibleUpgradeError(
            "sources of a kind that no connector knows have other names than their positions were kept under"
            if not others
            else "this version reads another source under the name of one whose position was kept",
            query_name=query_name,
            sources=others or new,
            snapshot_sources=list(names),
            next_step="Keep the names, each for its source.",
        )
    return MappedOffsets(
        lines=tuple(NO_OFFSET if number is None else lines[number] for number in numbers),
        identities=tuple(
            identities[number] if number is not None and number < len(identities) else None for number in numbers
        ),
        remarks=(
            *(f"source {name} is new: it starts where its options say" for name in new),
            *(said_of_left(name, lines[names.index(name)]) for name in left),
        ),
    )


def log_folders(
    folders: Mapping[int, int], known: QuerySnapshot, names: Sequence[str], sources: Sequence[KnownSource]
) -> dict[str, str]:
    """The folders of Spark's own logs of sources, below ``sources/``: before -> now.

    Args:
        folders: number of a source before -> its number now.
        names: of the snapshot's sources, by offset; empty where they had none.
    """
    before = {identity.log_folder: name for identity, name in zip(known.identities, names, strict=False)}
    now = {source.source.log_folder: source.source.folder for source in sources}
    return {before.get(one, str(one)): now.get(other, str(other)) for one, other in folders.items()}


def _called(identity: SourceIdentity, name: str) -> str:
    what = identity.what or "of a kind that no connector knows"
    return f"{what}, named {name}" if name else what
