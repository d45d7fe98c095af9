"""Tries a change on real Spark: the new script on the old checkpoint, and on a seed of it after a drain.

What is right needs no second opinion: a restore is right if it writes what the new script would have written from there
on, had it run from the beginning. A seed is right if it writes what the new script writes of what came after the drain.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from airflow_streamstate.checkpoint.barrier import exchange_for_drain
from airflow_streamstate.checkpoint.log import Checkpoint, format_offset_entry, stop_entry
from airflow_streamstate.checkpoint.seed import (
    PINNED_CONF_KEYS,
    SeedPlan,
    finish_seed,
    prepare_seed,
    renumbered_logs,
    source_files_of,
)
from airflow_streamstate.checkpoint.state_files import files_of
from airflow_streamstate.connectors.source import Source
from airflow_streamstate.plan.model import (
    PACE_OPTIONS,
    SETTINGS,
    SOURCE_OPTIONS,
    PlannedSink,
    PlannedSource,
    QueryPlan,
    kept_options,
)
from airflow_streamstate.plan.spark_json import PlanFacts, read_plan
from airflow_streamstate.store.local import LocalStore
from support.checkpoints import barrier_mark, end_offsets
from support.truth_table import PARTITIONS, Script

Rows = list[str]
SCHEMA = "t timestamp, u timestamp, k string, j string, v long, w long"
WAIT_SECONDS = 90
LATE = 5
FROM_SECONDS = (18, 10)
"""The watermark is 17 when the change comes. For a seed that keeps it rows up to it are late; where windows of ten
seconds are counted, rows of windows that it has closed."""
NO_OFFSET = "-"
_USUAL = {PARTITIONS: "1", "spark.sql.session.timeZone": "UTC"}
_EMPTY_BATCHES = "spark.sql.streaming.noDataMicroBatches.enabled"
_SPARKS_WORD = re.compile(r"\[([A-Z][A-Z_]+(?:\.[A-Z_]+)*)\]")
_SAYS_NOTHING = frozenset({"STREAM_FAILED", "FOREACH_BATCH_USER_FUNCTION_ERROR"})


def _row(second: int, key: str, other: str, value: int, u: int | None = None) -> dict[str, object]:
    stamps = {name: f"2024-01-01T00:{at // 60:02}:{at % 60:02}Z" for name, at in (("t", second), ("u", u or second))}
    return {**stamps, "k": key, "j": other, "v": value, "w": value % 7}


Files = tuple[tuple[dict[str, object], ...], ...]
BEFORE: Mapping[str, Files] = {
    "a": (
        (
            *(_row(1, "a", "x", 1), _row(3, "b", "y", 2), _row(6, "a", "y", 4), _row(8, "a", "x", 8)),
            *(_row(12, "b", "x", 16), _row(18, "c", "x", 32, u=2), _row(19, "y", "x", 21), _row(21, "a", "x", 64)),
        ),
        (_row(14, "b", "y", 128), _row(25, "b", "q", 5), _row(27, "a", "x", 256, u=20)),
    ),
    "b": (
        (_row(2, "a", "x", 3), _row(9, "d", "y", 11), _row(13, "b", "y", 6), _row(21, "a", "x", 9)),
        (_row(23, "a", "y", 18), _row(27, "c", "x", 17)),
    ),
}
AFTER: Mapping[str, Files] = {
    "a": (
        (
            *(_row(18, "a", "x", 512, u=3), _row(22, "b", "q", 1024), _row(21, "a", "x", 64), _row(24, "x", "y", 15)),
            *(_row(28, "A", "y", 2048), _row(31, "a", "y", 4096)),
        ),
        (_row(LATE, "a", "x", 8192), _row(18, "a", "x", 3), _row(32, "y", "x", 7), _row(300, "z", "z", 16384)),
    ),
    "b": (
        (_row(12, "b", "y", 66), _row(20, "c", "y", 33), _row(22, "b", "y", 65), _row(31, "a", "x", 130)),
        (_row(LATE, "a", "x", 257), _row(27, "b", "x", 70), _row(300, "z", "z", 513)),
    ),
}
"""Two files each, a batch each. The second batch closes what the first one let pass: when the change comes, some
windows are closed, others open. At the end a row far ahead closes all."""


class TruthLab:
    """One session, one input that shows more or less of itself, and the checkpoints of every old script.

    Args:
        before, after: by source, its files until the change comes, and from then on.
    """

    schema = SCHEMA

    def __init__(
        self, spark: Any, base: Path, before: Mapping[str, Files] = BEFORE, after: Mapping[str, Files] = AFTER
    ) -> None:
        self.spark = spark
        self.before, self.after = before, after
        self.base = base
        self.store = LocalStore(base)
        self._olds: dict[Script, Checkpoint] = {}
        self._whole: dict[Script, Rows | str] = {}
        self._later: dict[tuple[object, ...], Rows] = {}
        self._drained: dict[Script, tuple[Checkpoint, int]] = {}
        self._made = 0
        views: dict[str, tuple[Mapping[str, Files], Mapping[str, Files]]] = {
            "before": (before, {}),
            "all": (before, after),
            "after": ({}, after),
        }
        for second in FROM_SECONDS:
            earlier, later = _from(second, before), _from(second, after)
            views |= {f"all from {second}": (earlier, later), f"after from {second}": ({}, later)}
        for view, (first, second) in views.items():
            for name in after:
                self._write(base / "views" / view / name, first.get(name, ()), second.get(name, ()))
        (base / "in").mkdir()

    def _write(self, folder: Path, before: Files, after: Files) -> None:
        folder.mkdir(parents=True)
        numbered = [*enumerate(before), *enumerate(after, start=len(self.before["a"]))]
        for number, rows in numbered:
            path = folder / f"{number}.json"
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
            os.utime(path, (1_700_000_000 + number,) * 2)

    def restored(self, old: Script, new: Script) -> Rows | str:
        """What the new script writes on the checkpoint of the old one; Spark's word where it refuses."""
        fork = self.fork(old)
        try:
            return _all(self.run(new, fork, "all"))
        except _sparks_errors() as error:
            return refusal(error)

    def fork(self, old: Script) -> Checkpoint:
        """A copy of the checkpoint of an old script, as it is when the change comes."""
        fork = self.place("fork")
        shutil.copytree(self._folder(self._old(old)), self._folder(fork))
        return fork

    def from_the_beginning(self, new: Script) -> Rows | str:
        """What the new script would have written from there on, had it run from the beginning; Spark's word where it
        could not have."""
        if new not in self._whole:
            try:
                written = self.run(new, self.place("whole"), "all")
            except _sparks_errors() as error:
                self._whole[new] = refusal(error)
            else:
                later = {batch_id: rows for batch_id, rows in written.items() if batch_id >= len(self.before["a"])}
                self._whole[new] = _all(later)
        return self._whole[new]

    def seeded(self, old: Script, new: Script, lines: Mapping[int, int], *, keeps_watermark: bool) -> Rows:
        """What the new script writes on a seed of the old one, drained.

        Args:
            lines: position of a source in the new plan -> in the old one; up to the number of sources of the new one.
            keeps_watermark: whether column and delay are unchanged, so that late rows stay late.
        """
        drained, watermark_ms = self._drain(old)
        position = drained.position()
        assert position.batch_id is not None
        query_id, offsets = drained.query_id(), end_offsets(drained)
        assert query_id is not None
        order = tuple(offsets[lines[number]] if lines[number] >= 0 else NO_OFFSET for number in sorted(lines))
        plan = SeedPlan(query_id, position.batch_id, order, watermark_ms if keeps_watermark else 0)
        building, target = self.place("building"), self.place("seed")
        with self._settings(new):
            conf = {key: value for key in PINNED_CONF_KEYS if (value := self._setting(key)) is not None}
        prepare_seed(building, plan, conf=conf, batch_timestamp_ms=1_704_067_200_000)
        self.run(new, building, "before", once=True, changelog=False)
        files = {key[len(drained.prefix) + 1 :]: key for key in files_of(drained, position, with_state=False)}
        folders = {str(was): str(now) for now, was in lines.items() if was >= 0}
        assert finish_seed(building, plan, renumbered_logs(source_files_of(files), folders), target)
        return _all(self.run(new, target, "all"))

    def after_the_drain(self, new: Script, known: Collection[str], from_second: int | None = None) -> Rows:
        """What the new script writes of what came after the drain alone; of a source more, of all that it has.

        Args:
            known: names of the sources that the old one read.
            from_second: one of ``FROM_SECONDS``: without the rows before it; None for all.
        """
        ending = "" if from_second is None else f" from {from_second}"
        views = {name: f"{'after' if name in known else 'all'}{ending}" for name in self.after}
        key = (new, *views.values())
        if key not in self._later:
            self._later[key] = _all(self.run(new, self.place("after"), views))
        return self._later[key]

    def write_files(self, script: Script, folder: str, view: str, *, checkpoint: str) -> Rows:
        """Run a stateless script into a folder of files, from a checkpoint of this name; all rows that are there."""
        self._show(view)
        with self._settings(script):
            writer = self.frame(script).writeStream.format("parquet").option("path", str(self.base / folder))
            place = str(self.base / "checkpoints" / checkpoint)
            query = writer.option("checkpointLocation", place).trigger(availableNow=True).start()
            assert query.awaitTermination(WAIT_SECONDS), f"{script.text} did not end"
        return sorted(repr(tuple(row)) for row in self.spark.read.parquet(str(self.base / folder)).collect())

    def plan(self, script: Script) -> QueryPlan:
        """The plan of a script, with sources named by their folders alone: the same wherever the lab is."""
        from airflow_streamstate.driver.spark.spark_query import SparkWriter

        self._show("before")
        with self._settings(script):
            frame = self.frame(script)
            writer = frame.writeStream.outputMode(script.mode).foreachBatch(_nothing)
            asked = SparkWriter(self.spark, frame._jdf, writer._jwrite, None, None)
            facts, settings = asked.facts, asked.session_conf(SETTINGS)
            analyzed = asked.analyzed_plan().text
        sources = tuple(_source(each.planned) for each in facts.sources)
        return read_plan(
            analyzed,
            PlanFacts(
                query_name="tried",
                spark_version=self.spark.version,
                output_mode=facts.output_mode,
                trigger=facts.trigger,
                sink=PlannedSink("foreachBatch", "foreachbatch", adapter="foreachBatch"),
                watermarks=facts.watermarks,
                sources=sources,
                places=tuple(range(len(sources))),
                settings=settings,
            ),
        )

    def frame(self, script: Script) -> Any:
        """The data frame of a script, under the session's settings as they are."""
        names: dict[str, Any] = {}
        exec("from pyspark.sql.functions import *", names)  # noqa: S102 - the scripts of our own table
        names["rows"] = self._rows
        if "\n" not in script.text:
            return eval(script.text, names)  # noqa: S307
        exec(script.text, names)  # noqa: S102
        return names["result"]

    @contextmanager
    def _settings(self, script: Script, **more: str) -> Iterator[None]:
        wanted = {**_USUAL, **script.settings, **more}
        before = {key: self._setting(key) for key in wanted}
        for key, value in wanted.items():
            self.spark.conf.set(key, value)
        try:
            yield
        finally:
            for key, old in before.items():
                self.spark.conf.unset(key) if old is None else self.spark.conf.set(key, old)

    def _setting(self, key: str) -> str | None:
        try:
            return str(self.spark.conf.get(key))
        except Exception:  # each Spark has another class for a setting that it does not know
            return None

    def _rows(self, name: str = "a", *, schema: str = "", source: str = "json", **options: object) -> Any:
        reader = self.spark.readStream.schema(schema or self.schema).format(source)
        return reader.options(**{"maxFilesPerTrigger": 1, **options}).load(str(self.base / "in" / name))

    def _show(self, view: str | Mapping[str, str]) -> None:
        """Let the input be what is in a view, or in one for each source: the paths stay."""
        for name in self.after:
            link = self.base / "in" / name
            link.unlink(missing_ok=True)
            link.symlink_to(self.base / "views" / (view if isinstance(view, str) else view[name]) / name)

    def _old(self, script: Script) -> Checkpoint:
        if script not in self._olds:
            checkpoint = self.place("old")
            self.run(script, checkpoint, "before", empty_batches=False)
            self._olds[script] = checkpoint
        return self._olds[script]

    def _drain(self, script: Script) -> tuple[Checkpoint, int]:
        if script not in self._drained:
            checkpoint = self.place("drained")
            shutil.copytree(self._folder(self._old(script)), self._folder(checkpoint))
            position, watermark_ms = checkpoint.position(), checkpoint.watermark_ms()
            assert position.batch_id is not None
            body = format_offset_entry(stop_entry(checkpoint.read_offset(position.batch_id), barrier_mark()))
            checkpoint.store.create(checkpoint.offset_key(position.barrier_id), body)
            exchange_for_drain(checkpoint, barrier_mark("drain"))
            self.run(script, checkpoint, "before", once=True)
            self._drained[script] = checkpoint, watermark_ms
        return self._drained[script]

    def place(self, kind: str) -> Checkpoint:
        """Where a new checkpoint may be."""
        self._made += 1
        return Checkpoint(self.store, f"checkpoints/{kind}-{self._made}")

    def _folder(self, checkpoint: Checkpoint) -> Path:
        return self.base / checkpoint.prefix

    def run(
        self,
        script: Script,
        checkpoint: Checkpoint,
        view: str | Mapping[str, str],
        *,
        empty_batches: bool = True,
        once: bool = False,
        changelog: bool = True,
    ) -> dict[int, Rows]:
        """Run a script until it has read what the view shows; what it wrote, per batch."""
        self._show(view)
        written: dict[int, Rows] = {}

        def sink(rows: Any, batch_id: int) -> None:
            written.setdefault(batch_id, []).extend(repr(tuple(row)) for row in rows.collect())

        more = {_EMPTY_BATCHES: str(empty_batches).lower()}
        if not changelog:
            more["spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"] = "false"
        with self._settings(script, **more):
            writer = self.frame(script).writeStream.outputMode(script.mode).foreachBatch(sink)
            writer = writer.trigger(once=True) if once else writer.trigger(availableNow=True)
            query = writer.option("checkpointLocation", str(self._folder(checkpoint))).start()
            try:
                assert query.awaitTermination(WAIT_SECONDS), f"{script.text} did not end"
            finally:
                query.stop()
        return written


def _sparks_errors() -> tuple[type[Exception], ...]:
    from pyspark.errors import AnalysisException, StreamingQueryException

    return StreamingQueryException, AnalysisException


def _nothing(_rows: Any, _batch_id: int) -> None:
    """A sink that is never reached."""


def _source(planned: Source) -> PlannedSource:
    name = Path(planned.options["path"]).name
    kept = kept_options(planned.options, SOURCE_OPTIONS | PACE_OPTIONS, str)
    return PlannedSource(planned.format, "file", f"file {name}", kept)


def refusal(error: Exception) -> str:
    """Spark's word for why it refuses, or the first line of its message."""
    words = [word for word in _SPARKS_WORD.findall(str(error)) if word not in _SAYS_NOTHING]
    if words:
        return str(words[0])
    said = re.search(r"terminated with exception: (.*)", str(error))
    # Paths and ids differ each time.
    return re.sub(r"(file:)?/\S+", "PATH", said[1] if said else str(error).splitlines()[0]).partition(" SQLSTATE")[0]


def _from(second: int, files: Mapping[str, Files]) -> dict[str, Files]:
    first = str(_row(second, "", "", 0)["t"])
    return {
        name: tuple(tuple(row for row in rows if str(row["t"]) >= first) for rows in each)
        for name, each in files.items()
    }


def _all(written: Mapping[int, Rows]) -> Rows:
    return sorted(row for rows in written.values() for row in rows)
