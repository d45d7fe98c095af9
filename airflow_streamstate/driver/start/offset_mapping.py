"""Maps the stored offsets to the sources of a new version, by kind or by name; Spark maps them by place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from airflow_streamstate.checkpoint.guards import OFFSET_LOG_2_SINCE, OFFSET_LOG_FORMAT, line_of
from airflow_streamstate.checkpoint.log import SOURCES_NAMED, OffsetEntry
from airflow_streamstate.connectors.registry import FILE
from airflow_streamstate.connectors.source import NO_OFFSET, SYSTEM, Narrowed, NarrowingConnector, SourceConnector
from airflow_streamstate.driver.attempt.ports import StartableQuery
from airflow_streamstate.driver.attempt.query_sources import KnownSource
from airflow_streamstate.errors import IncompatibleUpgradeError, UnavailableError, UnsupportedCheckpointError
from airflow_streamstate.older_python import zipped
from airflow_streamstate.protocol.manifest import QuerySnapshot
from airflow_streamstate.protocol.positions import SourceIdentity

Answer = TypeVar("Answer")
_LISTED = 20
IF_MOVED = "If the same files were only moved, pass --move-source OLD=NEW: the stream continues exactly."


@dataclass(frozen=True)
class MappedOffsets:
    """The stored offsets, mapped to the sources of a new version.

    Attributes:
        lines: one per source, in the order of the plan; ``NO_OFFSET`` for a source that has none yet.
        identities: the identity that each line was stored with; None if there is no line.
        folders: of Spark's own log of a source: number in the snapshot -> number in the new checkpoint.
        remarks: human-readable.
    """

    lines: tuple[str, ...]
    identities: tuple[SourceIdentity | None, ...]
    folders: Mapping[int, int] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


def are_known(known: QuerySnapshot, sources: Sequence[KnownSource]) -> bool:
    """Whether a connector knows every source, of the snapshot and of the new plan."""
    stored = known.identities
    lines = known.position.end_offsets
    return (
        bool(stored)
        and len(stored) == len(lines)
        and all(identity.what for identity in stored)
        and bool(sources)
        and all(source.is_known for source in sources)
    )


def map_offsets(name: str, known: QuerySnapshot, sources: Sequence[KnownSource], *, accepts: bool) -> MappedOffsets:
    """Give each source of the new plan the offset of the same source; the same source twice keeps its order.

    Args:
        accepts: the user accepted lost input for this query.

    Raises:
        IncompatibleUpgradeError: a source replaces another one of its kind, or reads less than before without naming
            what it leaves out.
    """
    return _Mapping(name, known, sources, accepts=accepts).mapped()


class _Mapping:
    def __init__(self, name: str, known: QuerySnapshot, sources: Sequence[KnownSource], *, accepts: bool) -> None:
        self._name = name
        self._known = known
        self._sources = sources
        self._accepts = accepts
        self._taken = _same(known, sources)
        self._narrowed: dict[int, tuple[int, Narrowed]] = {}
        self._doubtful: set[int] = set()

    def mapped(self) -> MappedOffsets:
        for at, source in self._new():
            further = next(
                (number for number in self._left() if _asked(source, self._known, number, _continuing)), None
            )
            if further is not None:
                self._taken[at] = further
        for at, source in self._new():
            self._narrow(at, source)
        self._refuse_others()
        self._refuse_merged()
        places = range(len(self._sources))
        numbers = [self._taken.get(at, self._narrowed[at][0] if at in self._narrowed else None) for at in places]
        identities = self._known.identities
        return MappedOffsets(
            lines=tuple(self._line(at) for at in places),
            identities=tuple(None if number is None else identities[number] for number in numbers),
            folders={
                identities[number].log_folder: self._sources[at].source.log_folder
                for at, number in enumerate(numbers)
                if number is not None
            },
            remarks=(
                *(
                    f"source {_shown(source.identity)} is new: it starts where its options say"
                    for _, source in self._new()
                ),
                *(
                    said_of_left(_shown(identities[number]), self._known.position.end_offsets[number])
                    for number in self._left()
                ),
                *(
                    f"source {_shown(self._sources[at].identity)} continues where {_shown(identities[number])} was;"
                    " what else it reads starts at its first row"
                    for at, number in sorted(self._taken.items())
                    if self._sources[at].identity.what != identities[number].what
                ),
                *self._said_of_parts(),
            ),
        )

    def _new(self) -> list[tuple[int, KnownSource]]:
        return [
            (at, source)
            for at, source in enumerate(self._sources)
            if at not in self._taken and at not in self._narrowed
        ]

    def _left(self) -> list[int]:
        used = {*self._taken.values(), *(number for number, _ in self._narrowed.values())}
        return [number for number in range(len(self._known.identities)) if number not in used]

    def _line(self, at: int) -> str:
        if at in self._narrowed:
            return self._narrowed[at][1].kept
        return self._known.position.end_offsets[self._taken[at]] if at in self._taken else NO_OFFSET

    def _narrow(self, at: int, source: KnownSource) -> None:
        """Map a source to a part of a stored one; several sources may each take a part."""
        for number in range(len(self._known.identities)):
            if number in self._taken.values():
                continue
            others = [narrowed for taken, narrowed in self._narrowed.values() if taken == number]
            taken = frozenset[str]().union(*(other.read for other in others))
            found = _asked(source, self._known, number, _narrowing)
            if found is None or found.read <= taken:
                continue
            if (found.is_named and not found.read & taken) or self._accepts:
                self._narrowed[at] = (number, found)
                self._doubtful.discard(at)
                return
            self._doubtful.add(at)

    def _refuse_others(self) -> None:
        identities = self._known.identities
        new, left = [source.identity for _, source in self._new()], [identities[number] for number in self._left()]
        if self._accepts or not (self._doubtful or {one.adapter for one in new} & {one.adapter for one in left}):
            return
        next_step = (
            f"Read what was read before, or deploy with --accept-lost-input {self._name}: the new source then"
            " starts where its options say, and what the old one still has is not read."
        )
        if self._doubtful:
            next_step = (
                f"Read what was read before, or deploy with --accept-lost-input {self._name}: what is read as before"
                " then continues at its own offsets, what is new is read from its beginning, and the rest is not read."
            )
        next_step = _if_moved([*new, *left]) + next_step
        raise IncompatibleUpgradeError(
            "this version reads another source than the one whose position was kept",
            query_name=self._name,
            sources=[_shown(one) for one in new],
            snapshot_sources=[_shown(one) for one in left or identities],
            next_step=next_step,
        )

    def _refuse_merged(self) -> None:
        """Refuse one source for two stored ones: it would continue one offset, and read the other's input again."""
        merged = [
            number
            for number in self._left()
            for source in self._sources
            if source.identity.what != self._known.identities[number].what
            and (_asked(source, self._known, number, _continuing) or _asked(source, self._known, number, _narrowing))
        ]
        if merged and not self._accepts:
            raise IncompatibleUpgradeError(
                "this version reads in one source what was read in several, each at its own offset",
                query_name=self._name,
                sources=[_shown(source.identity) for source in self._sources],
                snapshot_sources=[_shown(identity) for identity in self._known.identities],
                next_step="Keep them apart: union the sources, as they were.",
            )

    def _said_of_parts(self) -> tuple[str, ...]:
        said = []
        for number in sorted({number for number, _ in self._narrowed.values()}):
            by = [narrowed for taken, narrowed in self._narrowed.values() if taken == number]
            read = frozenset[str]().union(*(narrowed.read for narrowed in by))
            left = [f"{part} at {at}" for part, at in by[0].left.items() if part not in read]
            what = _shown(self._known.identities[number])
            if left:
                more = "" if len(left) <= _LISTED else f" and {len(left) - _LISTED} more"
                said.append(
                    f"these parts of source {what} are not read any more, and are left at their offsets:"
                    f" {', '.join(left[:_LISTED])}{more}"
                )
        return tuple(said)


def _if_moved(sources: Sequence[SourceIdentity]) -> str:
    """The way on for files that are only at another place; "" where no source is of files."""
    if all(identity.adapter != FILE for identity in sources):
        return ""
    return f"{IF_MOVED} "


def check_same_order(
    name: str, known: QuerySnapshot, sources: Sequence[KnownSource], lines: Sequence[str] = ()
) -> None:
    """Check that a restore finds each source in its place, since Spark maps offsets to sources by place.

    Args:
        lines: the offsets to continue from: of the last committed batch, else of the planned one (1a.6).

    Raises:
        IncompatibleUpgradeError: a source is missing, another one, or in another place.
    """
    has_committed = known.position.batch_id is not None
    if not has_committed:
        known = replace(known, position=replace(known.position, end_offsets=tuple(lines)))
    if not are_known(known, sources):
        return
    is_same = len(sources) == len(known.identities) and all(
        (source.identity.what == identity.what or _asked(source, known, at, _continuing))
        and not _stands_elsewhere(identity, at, sources)
        for at, (source, identity) in enumerate(zip(sources, known.identities))
    )
    if not is_same:
        raise IncompatibleUpgradeError(
            "this version reads other sources than the state was built from, or in another order",
            query_name=name,
            sources=[_shown(source.identity) for source in sources],
            snapshot_sources=[_shown(identity) for identity in known.identities],
            next_step=_if_moved([*(source.identity for source in sources), *known.identities])
            + (
                "Keep the sources and their order; or drain the old version and deploy again: a seed gives each source"
                " its own position."
                if has_committed
                else "Keep the sources and their order; or deploy with --start fresh: no batch is committed yet."
            ),
        )


def _same(known: QuerySnapshot, sources: Sequence[KnownSource]) -> dict[int, int]:
    """Number of a new source -> number of the same source in the snapshot."""
    taken: dict[int, int] = {}
    # In the order of the plans, which is not that of the lines where sources have names.
    kept = sorted(enumerate(known.identities), key=lambda one: one[1].log_folder)
    found = sorted(enumerate(sources), key=lambda one: one[1].source.log_folder)
    # First the sources of the same system, then those of an unknown one, then any: the preflight finds their loss.
    for is_it in (lambda one, other: one == other != "", _may_share, lambda *_: True):
        for at, source in found:
            same = [
                number
                for number, identity in kept
                if (identity.adapter, identity.what) == (source.identity.adapter, source.identity.what)
                and number not in taken.values()
                and is_it(_system(identity), _system(source.identity))
            ]
            if at in taken or not same:
                continue
            if not _system(source.identity) and len({_system(known.identities[number]) for number in same} - {""}) > 1:
                raise UnavailableError(
                    "sources of one name are in several systems, and cannot be distinguished",
                    source=source.identity.what,
                    systems=sorted({_system(known.identities[number]) for number in same}),
                    next_step="See that they answer, and resume the deployment.",
                )
            taken[at] = same[0]
    return taken


def said_of_left(what: str, line: str) -> str:
    """The remark about a source that is not read any more, with its last offset."""
    return f"source {what} is not read any more; it is left {'unread' if line == NO_OFFSET else f'at {line}'}"


def may_be_one(kept: SourceIdentity, found: SourceIdentity) -> bool:
    """Whether two identities may be one source: of one name, and not of two systems."""
    is_of_one_name = (kept.adapter, kept.what) == (found.adapter, found.what)
    return is_of_one_name and _may_share(_system(kept), _system(found))


def _may_share(kept: str, found: str) -> bool:
    """Whether two systems may be one; "" for an unknown one."""
    return kept == found or "" in (kept, found)


def _system(identity: SourceIdentity) -> str:
    return identity.marks.get(SYSTEM, "")


def _shown(identity: SourceIdentity) -> str:
    system = _system(identity)
    return f"{identity.what} ({SYSTEM} {system})" if system else identity.what


def _stands_elsewhere(identity: SourceIdentity, at: int, sources: Sequence[KnownSource]) -> bool:
    """Whether a source has moved to another place, and another one of its name is in its place."""
    system, here = _system(identity), _system(sources[at].identity)
    others = (source.identity for number, source in enumerate(sources) if number != at)
    return (
        "" not in (system, here)
        and system != here
        and any(
            (other.adapter, other.what, _system(other)) == (identity.adapter, identity.what, system) for other in others
        )
    )


def _asked(
    source: KnownSource,
    known: QuerySnapshot,
    number: int,
    question: Callable[[SourceConnector, KnownSource, str], Answer],
) -> Answer | None:
    """What a connector reports about an offset of a different identity; None where it does not know."""
    identity, line = known.identities[number], known.position.end_offsets[number]
    if source.connector is None or identity.adapter != source.identity.adapter or line == NO_OFFSET:
        return None
    if not _may_share(_system(identity), _system(source.identity)):
        return None
    try:
        return question(source.connector, source, line)
    except Exception:
        return None


def _continuing(connector: SourceConnector, source: KnownSource, line: str) -> bool:
    return connector.continues(source.planned, line)


def _narrowing(connector: SourceConnector, source: KnownSource, line: str) -> Narrowed | None:
    return connector.narrow(source.planned, line) if isinstance(connector, NarrowingConnector) else None


# Maps the stored offsets to sources that the script named (``.name(…)``, Spark 4.2+).
#
# Spark finds the offset of such a source by its name alone. It silently reads a renamed source from its beginning,
# and gives a source that took over another one's name that one's offset.


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
    """Refuse an unnamed source that a plan has twice, for which offset log 2 has one offset only.

    Raises:
        UnsupportedCheckpointError: there is one.
    """
    facts = startable.facts
    folders = [source.folder for source in facts.sources]
    if len(set(folders)) != len(folders):
        raise UnsupportedCheckpointError(
            "a source that is twice in the plan is not supported in offset log 2",
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
            "the sources of this version have other names than in the snapshot: Spark would read them from the start"
            if tuple(names) != now
            else "the sources of this version are in another order, and state goes by place",
            query_name=query_name,
            sources=[_source_text(source.identity, source.source.name) for source in sources],
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
            what = _source_text(source.identity, source.source.name)
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
            renamed source; or a name is now that of a different source.
    """
    lines, identities = known.position.end_offsets, known.identities
    if not names or not has_names(sources):
        raise IncompatibleUpgradeError(
            "sources of a kind that no connector knows had no names before, or have none now",
            query_name=query_name,
            sources=[source.source.name or source.planned.format for source in sources],
            snapshot_sources=list(names) or "without names",
            next_step="Keep the names, or continue without any.",
        )
    now = [source.source.name for source in sources]
    new, left = [name for name in now if name not in names], [name for name in names if name not in now]
    numbers = [names.index(name) if name in names else None for name in now]
    others = [
        name
        for name, number, source in zipped(now, numbers, sources)
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
    before = {identity.log_folder: name for identity, name in zip(known.identities, names)}
    now = {source.source.log_folder: source.source.folder for source in sources}
    return {before.get(one, str(one)): now.get(other, str(other)) for one, other in folders.items()}


def _source_text(identity: SourceIdentity, name: str) -> str:
    what = identity.what or "of a kind that no connector knows"
    return f"{what}, named {name}" if name else what
