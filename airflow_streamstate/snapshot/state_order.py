"""The order to a driver that reads state in forks of snapshots, as plain JSON in ``driver.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from decimal import Decimal
from typing import Any, Literal

from airflow_streamstate.errors import MalformedMessageError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.terms.reading import ExportFormat

Verb = Literal["state", "diff"]
ABOUT = "_about.json"
"""Describes exported tables. It is written before them, and says ``complete`` after them."""
RESULT = "result.json"
PROGRESS = "progress.txt"


@dataclass(frozen=True)
class StatePlace:
    """A fork of one query's state.

    Attributes:
        checkpoint_uri: as Spark writes it.
        batch_id: the batch that left the state.
        state_format: Spark's state checkpoint format, 1 or 2.
        feed_from: the first batch of the change feed that can be read here; None for none.
        feed_gap: the reason for none.
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
        before: the older state of ``diff``, and of an export of changes; empty for none.
        key: the rows to show, by columns of the state's keys and their values; None for no rows.
        export: the tables to write, or with ``before`` their changes; None for none.
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
