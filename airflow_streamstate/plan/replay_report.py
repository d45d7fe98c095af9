"""The report of a replay: what became of each recorded batch, in one version or in two. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, Union

from airflow_streamstate.frozen import dataclass
from airflow_streamstate.older_python import zipped
from airflow_streamstate.protocol.forms import View, selected
from airflow_streamstate.protocol.scratch import (
    RehearsedQuery,
    ReplayedBatch,
    RowComparison,
    ScratchRun,
    ScratchVerdict,
    StateComparison,
)

ReplayOutcome = Literal["done", "failed", "refused", "deadline"]
NOT_STARTED = "the script did not start this query"


@dataclass(frozen=True)
class ReplayedQuery(View):
    """What became of one query.

    Attributes:
        outcome: ``done``: each batch has run; ``failed`` in the script or in Spark; ``refused`` by a rule of this
            package.
        error: why it is not done, one line; "" where it is.
        batches: those that ran, and the one that failed.
        state: of a new version, the state after the last batch, compared with that of the recorded one, table by table.
    """

    form: ClassVar[str] = "* batches=shown_batches state=shown_state"

    outcome: ReplayOutcome
    error: str = ""
    batches: tuple[ReplayedBatch, ...] = ()
    notes: tuple[str, ...] = ()
    state: tuple[StateComparison, ...] = ()

    @property
    def shown_batches(self) -> list[dict[str, Any]]:
        """``batches`` as JSON."""
        return [_with_changed_rows(batch) for batch in self.batches]

    @property
    def shown_state(self) -> list[dict[str, Any]]:
        """``state`` as JSON."""
        return [_with_changed_rows(table) for table in self.state]


def _with_changed_rows(found: ReplayedBatch | StateComparison) -> dict[str, Any]:
    """Its fields; its comparison also has the rows that changed, as their tables show them."""
    comparison = found.comparison
    if comparison is None:
        return selected(found, "*")
    rows = changed_rows(comparison.samples_changed)
    named = [dict(zipped(CHANGED_COLUMNS, row)) for row in rows]
    return selected(found, "*") | {"comparison": selected(comparison, "*") | {"changed_rows": named}}


@dataclass(frozen=True)
class ReplayReport(View):
    """A replay at its end.

    Attributes:
        outcome: the worst of all queries; ``deadline``: it was not over in time.
        error: why the script or the driver did not come to its end; "" where it did.
        traceback, log_tail: of a script that failed, of a driver that died.
    """

    stream_id: str
    replay_id: str
    deployment_id: str
    out: str
    outcome: ReplayOutcome
    queries: Mapping[str, ReplayedQuery]
    seconds: float
    error: str = ""
    traceback: str = ""
    log_tail: str = ""
    spark_version: str = ""
    notes: tuple[str, ...] = ()

    @property
    def has_same_rows(self) -> bool:
        """Whether every batch was compared and has the same rows."""
        compared = [batch.comparison for query in self.queries.values() for batch in query.batches]
        return all(comparison is not None and comparison.is_same for comparison in compared)


@dataclass(frozen=True)
class Speed(View):
    """How long batches took in both versions.

    Attributes:
        batches: how many.
        is_cold: these are the first batches of their queries, which find a cold JVM; the first ones are left out where
            others ran.
    """

    form: ClassVar[str] = "* ratio"

    batches: int
    old_seconds: float
    new_seconds: float
    is_cold: bool = False

    @property
    def ratio(self) -> float | None:
        """The seconds of the new version in those of the old; None where these are too few to compare."""
        return round(self.new_seconds / self.old_seconds, 2) if self.old_seconds > 0 else None

    def __str__(self) -> str:
        of = "1 batch" if self.batches == 1 else f"{self.batches} batches"
        ratio = "" if self.ratio is None else f": {self.ratio:.2f} of the old"
        first = "with a cold JVM in both" if self.is_cold else "without the first of each query, which finds a cold JVM"
        return f"{self.old_seconds:.1f} s old, {self.new_seconds:.1f} s new{ratio} ({of}, {first})"


@dataclass(frozen=True)
class ReplayedVersions(View):
    """The same batches in the recorded version and in a new one, on forks of the same state.

    Attributes:
        new: the ``comparison`` of each of its batches is with the rows of the recorded version.
    """

    form: ClassVar[str] = "**new old speed"

    old: ReplayReport
    new: ReplayReport

    @property
    def pairs(self) -> tuple[tuple[str, ReplayedBatch | None, ReplayedBatch | None], ...]:
        """Each batch that ran: its query, and what became of it in the old and in the new version; None where it did
        not run."""
        found: list[tuple[str, ReplayedBatch | None, ReplayedBatch | None]] = []
        for name in self.new.queries:
            old, new = (
                {batch.batch_id: batch for batch in report.queries[name].batches} if name in report.queries else {}
                for report in (self.old, self.new)
            )
            found += [(name, old.get(number), new.get(number)) for number in sorted({*old, *new})]
        return tuple(found)

    @property
    def speed(self) -> Speed | None:
        """How long the batches took that ran in both versions; None where none did."""
        both: list[tuple[float, float]] = []
        first: list[tuple[float, float]] = []
        seen: set[str] = set()
        for name, old, new in self.pairs:
            if old is not None and new is not None and old.rows_out is not None and new.rows_out is not None:
                (both if name in seen else first).append((old.seconds, new.seconds))
            seen.add(name)
        counted = both or first
        if not counted:
            return None
        old_seconds, new_seconds = (round(sum(each[side] for each in counted), 3) for side in (0, 1))
        return Speed(len(counted), old_seconds, new_seconds, is_cold=not both)

    def without_files(self) -> ReplayedVersions:
        """The same where the files of the rows are not kept: no folder and no file is named."""
        return ReplayedVersions(_without_files(self.old), _without_files(self.new))


def _without_files(report: ReplayReport) -> ReplayReport:
    queries = {
        name: replace(query, batches=tuple(replace(batch, folder="", files=()) for batch in query.batches))
        for name, query in report.queries.items()
    }
    return replace(report, out="", queries=queries)


Column = tuple[str, Callable[[Union[ReplayedBatch, None], Union[ReplayedBatch, None]], object]]
VERSIONS_COLUMNS: tuple[Column, ...] = (
    ("rows in", lambda old, new: _first("rows_in", new, old)),
    ("rows out, old", lambda old, _new: _first("rows_out", old)),
    ("rows out, new", lambda _old, new: _first("rows_out", new)),
    ("same", lambda _old, new: _compared("same", new)),
    ("changed", lambda _old, new: _compared("changed", new)),
    ("only old", lambda _old, new: _compared("only_old", new)),
    ("only new", lambda _old, new: _compared("only_new", new)),
    ("seconds, old", lambda old, _new: _first("seconds", old)),
    ("seconds, new", lambda _old, new: _first("seconds", new)),
)
"""The numbers that tables show of a batch in two versions: the title, and the number; None without one."""


def versions_rows(found: ReplayedVersions) -> list[tuple[str, ...]]:
    """The rows of a table of two versions: the query, the batch, and the numbers of ``VERSIONS_COLUMNS``."""
    return [
        (name, str(_first("batch_id", new, old)), *(_cell(number_of(old, new)) for _, number_of in VERSIONS_COLUMNS))
        for name, old, new in found.pairs
    ]


def samples_of(name: str, batch: ReplayedBatch | None) -> dict[str, str]:
    """By title, the first rows of a batch that changed, or that only one version has, one in a line."""
    if batch is None or batch.comparison is None:
        return {}
    return _samples(f"batch {batch.batch_id} of {name}", batch.comparison)


@dataclass(frozen=True)
class SampleTable:
    """Rows as a table of texts."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


CHANGED_COLUMNS = ("key", "old", "new")


def sample_tables(name: str, batch: ReplayedBatch | None) -> dict[str, SampleTable]:
    """As ``samples_of``, each as a table: of a row that changed its key, the old and the new values."""
    if batch is None or batch.comparison is None:
        return {}
    found, of = batch.comparison, f"batch {batch.batch_id} of {name}"
    tables = {
        f"{of}, changed": SampleTable(CHANGED_COLUMNS, changed_rows(found.samples_changed)),
        f"{of}, only old": _table_of(found.samples_old),
        f"{of}, only new": _table_of(found.samples_new),
    }
    return {title: table for title, table in tables.items() if table.rows}


def changed_rows(samples: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """The key, the old and the new values of rows that changed; one that cannot be read whole is a key alone."""
    return tuple(
        (sample, "", "") if (row := _read(sample)) is None else tuple(_words(row.get(part)) for part in CHANGED_COLUMNS)
        for sample in samples
    )


def _table_of(samples: Sequence[str]) -> SampleTable:
    rows = [_read(sample) for sample in samples]
    names = tuple(dict.fromkeys(name for row in rows if row is not None for name in row))
    if not names or None in rows:
        return SampleTable(("row",), tuple((sample,) for sample in samples))
    return SampleTable(names, tuple(tuple(_value(row, name) for name in names) for row in rows if row is not None))


def _read(sample: str) -> Mapping[str, Any] | None:
    """The content of a row in JSON; None where it was cut."""
    try:
        found = json.loads(sample)
    except ValueError:
        return None
    return found if isinstance(found, Mapping) else None


def _words(part: object) -> str:
    """``route JFK-LAX, hour 7``."""
    return ", ".join(f"{name} {_value(part, name)}" for name in part) if isinstance(part, Mapping) else ""


def _value(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _samples(of: str, found: RowComparison) -> dict[str, str]:
    kinds = {"changed": found.samples_changed, "only old": found.samples_old, "only new": found.samples_new}
    return {f"{of}, {kind}": "\n".join(rows) for kind, rows in kinds.items() if rows}


STATE_TITLES = ("query", "state", "same", "changed", "only old", "only new")


def state_rows(found: ReplayReport) -> list[tuple[str, ...]]:
    """The rows of a table of the state that two versions left: the cells of ``STATE_TITLES``."""
    return [
        (name, each.table, *(_cell(getattr(each.comparison, title.replace(" ", "_"))) for title in STATE_TITLES[2:]))
        for name, query in found.queries.items()
        for each in query.state
    ]


def state_samples(found: ReplayReport) -> dict[str, str]:
    """By title, the first rows of the state that differ, one in a line."""
    told: dict[str, str] = {}
    for name, query in found.queries.items():
        for each in query.state:
            told.update(_samples(f"state {each.table} of {name}", each.comparison))
    return told


def _first(name: str, *batches: ReplayedBatch | None) -> object:
    found = (getattr(batch, name) for batch in batches if batch is not None)
    return next((value for value in found if value is not None), None)


def _compared(name: str, batch: ReplayedBatch | None) -> object:
    return None if batch is None or batch.comparison is None else getattr(batch.comparison, name)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}" if isinstance(value, float) else f"{value:,}"


def replay_report(run: ScratchRun, verdict: ScratchVerdict) -> ReplayReport:
    """The report of a replay that has ended. Pure."""
    queries = {
        name: _query(verdict.queries.get(name), verdict.error or NOT_STARTED, is_late=verdict.outcome == "deadline")
        for name in run.replay.batches
    }
    outcomes = {query.outcome for query in queries.values()}
    worst: tuple[ReplayOutcome, ...] = ("failed", "refused", "done")
    outcome: ReplayOutcome = next((each for each in worst if each in outcomes), "done")
    if verdict.outcome != "done":
        outcome = verdict.outcome
    return ReplayReport(
        stream_id=run.stream_id,
        replay_id=run.run_id,
        deployment_id=run.deployment_id,
        out=run.replay.out,
        outcome=outcome,
        queries=queries,
        seconds=verdict.seconds,
        error=verdict.error,
        traceback=verdict.traceback,
        log_tail=verdict.log_tail,
        spark_version=verdict.spark_version,
        notes=tuple(dict.fromkeys((*run.notes, *verdict.notes))),
    )


def _query(found: RehearsedQuery | None, why_not: str, *, is_late: bool) -> ReplayedQuery:
    if found is None:
        return ReplayedQuery("deadline" if is_late else "failed", why_not)
    outcome: ReplayOutcome = {"accepted": "done", "refused": "refused"}.get(found.outcome, "failed")  # type: ignore[assignment]
    return ReplayedQuery(outcome, found.error, found.replayed, found.notes, found.state)
