"""The tables of each stateful operator, as Spark's state readers give them, and the columns that identify a row.

Pure: from the rows of Spark's ``state-metadata`` to the options of ``statestore``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

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
class StateTable:
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

    def described(self) -> dict[str, object]:
        """The table in JSON."""
        return {"table": self.path, "name": self.name, "kind": self.kind, "has_ttl": self.has_ttl}


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
