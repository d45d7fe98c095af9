"""The tables of each stateful operator, their sizes, and the order to a driver that reads them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from decimal import Decimal
from typing import Any, ClassVar, Literal

from airflow_streamstate.checkpoint.state_files import MAX_PARTITIONS
from airflow_streamstate.errors import DataError, MalformedMessageError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.forms import View
from airflow_streamstate.protocol.manifest import FileEntry
from airflow_streamstate.protocol.terms.order import ExportFormat

TableKind = Literal["rows", "join", "value", "list", "map", "timers"]
PARTITION = "partition_id"
JOIN_ROWS = "rows"
"""The number of equal rows in a side of a join, compared in place of a payload."""
_DEFAULT_STORE = "default"
_ODD = re.compile(rb"[^A-Za-z0-9_-]|^_")
_KINDS: Mapping[str, TableKind] = {"ValueState": "value", "ListState": "list", "MapState": "map"}
_TIMERS: Mapping[str, str] = {"ProcessingTime": "processing_time", "EventTime": "event_time"}
_IDENTITY: Mapping[TableKind, tuple[str, ...]] = {
    "rows": ("key",),
    "join": ("key", "value"),
    "value": ("key",),
    "list": ("key",),
    "map": ("key", "user_map_key"),
    "timers": ("key", "expiration_timestamp_ms"),
}
_PAYLOAD: Mapping[TableKind, str] = {
    "rows": "value",
    "join": JOIN_ROWS,
    "value": "value",
    "list": "list_value",
    "map": "user_map_value",
}


@dataclass(frozen=True)
class StateTable(View):
    """One table of an operator: Spark reads one at a time.

    Attributes:
        operator_id, operator_name: Spark's own.
        name: ``rows`` of an operator with one store, ``left`` and ``right`` of a join, of a ``transformWithState`` its
            variable, or ``timers``.
        kind: only a side of a ``join`` may hold equal rows; all others hold each identity once.
        partitions: their number.
        has_ttl: whether its values expire.
        time: of timers ``processing_time`` or ``event_time``; "" for others.
    """

    form: ClassVar[str] = "table=path name kind has_ttl"

    operator_id: int
    operator_name: str
    name: str
    kind: TableKind
    partitions: int
    has_ttl: bool = False
    time: str = ""

    @property
    def options(self) -> dict[str, str]:
        """For Spark's ``statestore``: a list as a whole, a map entry by entry."""
        found = {"operatorId": str(self.operator_id)}
        if self.kind == "join":
            return {**found, "joinSide": self.name}
        if self.kind == "timers":
            return {**found, "readRegisteredTimers": "true"}
        if self.kind == "rows":
            return found
        return {**found, "stateVarName": self.name, "flattenCollectionTypes": str(self.kind == "map").lower()}

    @property
    def identity(self) -> tuple[str, ...]:
        """The columns that identify a row in every snapshot."""
        return _IDENTITY[self.kind]

    @property
    def payload(self) -> str | None:
        """The column that may change while the row stays; None for timers."""
        return _PAYLOAD.get(self.kind)

    @property
    def path(self) -> str:
        """Its folder below an exported query."""
        # Distinct from every variable's folder, in which two digits follow each tilde.
        name = "~timers" if self.kind == "timers" else folder_name(self.name)
        return f"{self.operator_id}-{folder_name(self.operator_name)}/{name}"

    @property
    def has_feed(self) -> bool:
        """Whether Spark's change feed has the new row. A list's has what was appended, a join's is of its index; timers
        have none."""
        return self.kind in ("rows", "value", "map")


def folder_name(name: str) -> str:
    """A user's name as one of a folder that Spark reads: letters, digits, ``_`` and ``-`` stay, except a leading ``_``,
    which would hide the folder; every other byte becomes ``~XX``."""
    return _ODD.sub(lambda odd: b"~%02X" % odd[0][0], name.encode("utf-8", "surrogatepass")).decode()


def tables_of(stores: Iterable[Mapping[str, object]]) -> list[StateTable]:
    """The tables of a checkpoint, by the rows of ``state-metadata``: one per state store."""
    found: list[StateTable] = []
    for store in stores:
        operator_id, operator_name = int(str(store["operatorId"])), str(store["operatorName"])
        partitions, store_name = int(str(store["numPartitions"])), str(store["stateStoreName"])
        properties = json.loads(str(store.get("operatorProperties") or "{}"))
        if "timeMode" in properties or "stateVariables" in properties:
            found += _of_processor(operator_id, operator_name, partitions, properties)
        elif operator_name == "symmetricHashJoin":
            names = {table.name for table in found if table.operator_id == operator_id}
            # Four stores, or one in newer formats; the reader puts the sides together.
            sides = [side for side in ("left", "right") if side not in names]
            found += [StateTable(operator_id, operator_name, side, "join", partitions) for side in sides]
        elif store_name == _DEFAULT_STORE:
            found.append(StateTable(operator_id, operator_name, "rows", "rows", partitions))
    return sorted(found, key=lambda table: table.operator_id)


def _of_processor(
    operator_id: int, operator_name: str, partitions: int, properties: Mapping[str, object]
) -> Iterable[StateTable]:
    for variable in variables_in(properties):
        kind = _KINDS.get(str(variable.get("stateVariableType")))
        name = str(variable["stateName"])
        if kind is not None and not name.startswith("$"):  # Spark's own are its timers
            has_ttl = bool(variable.get("ttlEnabled"))
            yield StateTable(operator_id, operator_name, name, kind, partitions, has_ttl=has_ttl)
    time = _TIMERS.get(str(properties.get("timeMode")))
    if time is not None:
        yield StateTable(operator_id, operator_name, "timers", "timers", partitions, time=time)


def variables_in(properties: Mapping[str, object]) -> list[Mapping[str, object]]:
    """The variables in the properties of an operator, timers among them; Spark 4.0 has them as a text."""
    described = properties.get("stateVariables", [])
    listed = json.loads(described) if isinstance(described, str) else described
    return list(listed) if isinstance(listed, list) else []


def difference_of(one: Iterable[StateTable], other: Iterable[StateTable]) -> str:
    """Why the tables of two checkpoints cannot be compared; "" where they can. Partitions may differ."""
    first, second = ({(table.path, table.kind) for table in tables} for tables in (one, other))
    if first == second:
        return ""
    told = [
        f"{' and '.join(f'{path} ({kind})' for path, kind in sorted(alone))} is only in the {which} one"
        for which, alone in (("first", first - second), ("second", second - first))
        if alone
    ]
    return "; ".join(told)


# The order to a driver that reads state in forks of snapshots, as plain JSON in ``driver.json``.

Verb = Literal["state", "diff"]
ABOUT = "_about.json"
"""Describes exported tables. It is written before them, and has ``complete`` after them."""
RESULT = "result.json"
PROGRESS = "progress.txt"


@dataclass(frozen=True)
class StatePlace:
    """A fork of one query's state.

    Attributes:
        checkpoint_uri: as Spark writes it.
        batch_id: the batch that left the state.
        state_format: Spark's state checkpoint format, 1 or 2.
        feed_from: the first batch of the change feed that can be read here; None without one.
        feed_gap: why there is no such batch.
    """

    checkpoint_uri: str
    batch_id: int
    state_format: int = 1
    feed_from: int | None = None
    feed_gap: str = ""


@dataclass(frozen=True)
class StateExport:
    """Tables to be written.

    Attributes:
        uri: of the folder, as Spark writes it.
        overwrite: whether an earlier export there is replaced; nothing else ever is.
        about: the content of ``_about.json``.
    """

    uri: str
    format: ExportFormat
    overwrite: bool
    about: Mapping[str, Any]


@dataclass(frozen=True)
class StateOrder:
    """One reading.

    Attributes:
        verb: ``state`` reads ``places``, and exports them; ``diff`` compares them with ``before``.
        places: by query name.
        folder: of this machine, for result and progress.
        deadline_seconds: the driver ends itself after this time (Law 6).
        limit: the most rows to show of each table.
        before: the older state of ``diff``, and of an export of changes; empty otherwise.
        key: the rows to show, by columns of the state's keys and their values; None for no rows.
        export: the tables to write, or with ``before`` their changes; None if not set.
    """

    verb: Verb
    places: Mapping[str, StatePlace]
    folder: str
    deadline_seconds: float
    limit: int
    before: Mapping[str, StatePlace]
    key: Mapping[str, Any] | None = None
    export: StateExport | None = None

    def to_json(self) -> dict[str, object]:
        """As a plain JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> StateOrder:
        """The order in this JSON object.

        Raises:
            MalformedMessageError: it is none.
        """
        try:
            export = raw["export"]
            return cls(
                verb=raw["verb"],
                places={name: StatePlace(**place) for name, place in raw["places"].items()},
                folder=raw["folder"],
                deadline_seconds=float(raw["deadline_seconds"]),
                limit=int(raw["limit"]),
                before={name: StatePlace(**place) for name, place in raw["before"].items()},
                key=raw["key"],
                export=None if export is None else StateExport(**export),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise MalformedMessageError(
                "the driver's order to read state is malformed",
                reason=f"{type(error).__name__}: {error}",
                next_step="Read state with `streamstate snapshot inspect`, `export` or `diff`; they write this.",
            ) from None


def parse_exactly(text: str) -> Any:
    """The value of a JSON text, with each number exact: as a text where no float is exact (long decimals), or where
    JSON has no number for it (NaN, Infinity).

    Raises:
        ValueError: it is no JSON.
    """

    def number(digits: str) -> float | str:
        near = float(digits)
        return near if Decimal(repr(near)) == Decimal(digits) else digits

    return json.loads(text, parse_float=number, parse_constant=str)


# The distribution of state: bytes of each operator and partition by the manifest, and the skew of rows.

_PARTITION = re.compile(r"state/([0-9]+)/([0-9]+)/.+")
_MOST_DIGITS = 9
_OPERATOR = re.compile(r"state/([0-9]+)/.+")


@dataclass(frozen=True)
class Skew(View):
    """The skew of an operator's rows.

    Attributes:
        most: rows of the fullest partition.
        median: of all partitions.
        fullest: the first partition with ``most`` rows.
        ratio: ``most`` by ``median``; None if that is 0.
    """

    most: int
    median: float
    fullest: int
    ratio: float | None


def skew_of(rows: Sequence[int]) -> Skew | None:
    """The skew of an operator by the rows of each partition, also empty ones; None where it has none."""
    if not rows:
        return None
    import statistics

    most, median = max(rows), float(statistics.median(rows))
    return Skew(most, median, rows.index(most), round(most / median, 2) if median else None)


def bytes_by_partition(files: Iterable[FileEntry]) -> dict[int, dict[int, int]]:
    """Bytes per operator and partition of the files from which Spark opens the state.

    Raises:
        DataError: a path names a partition that no operator has.
    """
    found: dict[int, dict[int, int]] = {}
    for entry in files:
        match = _PARTITION.fullmatch(entry.path)
        if match is not None:
            if len(match[2]) > _MOST_DIGITS or int(match[2]) >= MAX_PARTITIONS:
                raise DataError("a snapshot lists a file of a partition that no operator has", path=entry.path)
            partitions = found.setdefault(int(match[1]), {})
            partitions[int(match[2])] = partitions.get(int(match[2]), 0) + entry.size_bytes
    return found


def operators_in(files: Iterable[FileEntry]) -> set[int]:
    """The numbers of the operators that have state there."""
    return {int(match[1]) for entry in files if (match := _OPERATOR.fullmatch(entry.path))}
