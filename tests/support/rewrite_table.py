"""The truth table of state that is rewritten: a script, a change of where or how its state is stored, what is promised.

``test_rewrite_table`` tries each row on real Spark; ``docs/rewrites.py`` makes a page of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_streamstate.checkpoint.guards import HDFS_BACKED_PROVIDER
from support.truth_table import CHANGELOG, PARTITIONS, PROVIDER, ROCKSDB, STATE_FORMAT, Script

QUERY = "tried"
MARKED = 'rows().withWatermark("t", "10 seconds")'
ENCODING = "spark.sql.streaming.stateStore.encodingFormat"
WINDOW = 'window("t", "10 seconds")'
RIGHT = "right"
HOURS_AHEAD = 2


@dataclass(frozen=True)
class Operator:
    """A query with state.

    Attributes:
        name: human-readable.
        text: of its data frame, as in ``support.truth_table``.
        has_clock: its state depends on the time of the clock, so no other run has the same.
        stores: ``hdfs`` if that store can hold it.
        in_ci: some of its rows are tried in every CI run.
        refused: why it cannot be rewritten, in the words of the error; "" where it can.
    """

    name: str
    text: str
    mode: str = "append"
    has_clock: bool = False
    stores: tuple[str, ...] = ("rocksdb", "hdfs")
    in_ci: bool = False
    refused: str = ""

    def script(self, store: str, partitions: int, **settings: str) -> Script:
        """The operator in this store, in this many partitions."""
        provider = ROCKSDB if store == "rocksdb" else HDFS_BACKED_PROVIDER
        return Script(self.text, self.mode, {PROVIDER: provider, PARTITIONS: str(partitions), **settings})


@dataclass(frozen=True)
class Change:
    """A change of where or how state is stored.

    Attributes:
        stores: of the old and the new version.
        partitions: of both.
        settings: of both, besides.
        asks: of the upgrade, as ``StateRewrite`` has it.
        needs: the old store.
    """

    name: str
    stores: tuple[str, str]
    partitions: tuple[int, int]
    asks: Mapping[str, object]
    settings: tuple[Mapping[str, str], Mapping[str, str]] = field(default_factory=lambda: ({}, {}))


@dataclass(frozen=True)
class Row:
    """One change of one query.

    Attributes:
        migration: a file with migrations, whose functions make of the old state what the new version would hold; "" for
            none.
        in_ci: tried in every CI run.
        refused: as in ``Operator``.
    """

    name: str
    operator: str
    change: str
    old: Script
    new: Script
    asks: Mapping[str, object]
    migration: str = ""
    has_clock: bool = False
    in_ci: bool = False
    refused: str = ""


def _rocksdb(name: str, was: int, now: int) -> Change:
    return Change(name, ("rocksdb", "rocksdb"), (was, now), {"partitions": now})


MORE, FEWER, ONE = _rocksdb("3 to 5 partitions", 3, 5), _rocksdb("5 to 2", 5, 2), _rocksdb("3 to 1", 3, 1)
MOVED = Change("HDFS-backed to RocksDB", ("hdfs", "rocksdb"), (3, 3), {"state_store": "rocksdb"})
MOVED_AND_MORE = Change(
    "HDFS-backed to RocksDB, 3 to 5", ("hdfs", "rocksdb"), (3, 5), {"state_store": "rocksdb", "partitions": 5}
)
ALL = (MORE, MOVED_AND_MORE)
FULL = (FEWER, ONE, MOVED)

_FORMAT_2, _CHANGELOG = {STATE_FORMAT: "2"}, {CHANGELOG: "true"}


def _between(name: str, was: Mapping[str, str], now: Mapping[str, str], **asks: object) -> Change:
    return Change(name, ("rocksdb", "rocksdb"), (3, 5), {"partitions": 5, **asks}, (was, now))


AVRO = _between("encoded as Avro", {ENCODING: "avro"}, {ENCODING: "avro"})
FORMATS = (
    _between("checkpoint format 1 to 2", {}, _FORMAT_2, checkpoint_format=2),
    _between("checkpoint format 2 to 1", _FORMAT_2, {}, checkpoint_format=1),
    _between("checkpoint format 2 stays", _FORMAT_2, _FORMAT_2),
    _between("changelogs before", _CHANGELOG, {}),
    _between("changelogs after", {}, _CHANGELOG),
    _between("changelogs before and after", _CHANGELOG, _CHANGELOG),
)

_SIDES = """l = rows("a").withWatermark("t", "10 seconds").selectExpr("t as lt", "k as lk", "j as lj", "v as lv")
r = rows("b").withWatermark("t", "10 seconds").selectExpr("t as rt", "k as rk", "j as rj", "v as rv")
"""


def _joined(how: str, keys: str = "lk = rk", select: str = "") -> str:
    condition = f"{keys} and rt >= lt and rt <= lt + interval 5 seconds"
    return f'{_SIDES}result = l.join(r, expr("{condition}"), "{how}"){select}'


def _aggregate(keys: str, *aggregates: str) -> str:
    return f"{MARKED}.groupBy({keys}).agg({', '.join(aggregates)})"


_SUM = 'sum("v").alias("s")'
_SUMS = _aggregate(f'{WINDOW}, "k"', _SUM)
_SHORT = _aggregate('window("t", "5 seconds"), "k"', _SUM)
_DECIMAL = 'sum(col("v").cast("decimal(20,4)")).alias("d")'
_PROCESSOR = """import decimal
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
class Kept(StatefulProcessor):
    def init(self, handle):
        self.handle = handle
        self.total = handle.getValueState("total", "n long, last timestamp, of struct<j string, d decimal(20,2)>"TTL)
        self.seen = handle.getListState("seen", "v long, j string"TTL)
        self.by_j = handle.getMapState("by_j", "j string, odd boolean", "n long"TTL)
    def handleInputRows(self, key, rows, timerValues):
        for row in rows:
            n = self.total.get()[0] if self.total.exists() else 0
            self.total.update((n + row.v, row.t, (row.j, decimal.Decimal(row.v))))
            self.seen.appendValue((row.v, row.j))
            place = (row.j, row.v % 2 == 1)
            had = self.by_j.getValue(place)[0] if self.by_j.containsKey(place) else 0
            self.by_j.updateValue(place, (had + row.v,))
            TIMER
        yield self.told(key, "rows")
    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        yield self.told(key, "timer")
        self.seen.clear()
    def told(self, key, why):
        total = repr(tuple(self.total.get())) if self.total.exists() else ""
        seen = repr([tuple(one) for one in self.seen.get()]) if self.seen.exists() else ""
        by_j = repr(sorted((tuple(k), tuple(v)) for k, v in self.by_j.iterator())) if self.by_j.exists() else ""
        return Row(k=key[0], why=why, total=total, seen=seen, by_j=by_j)
    def close(self):
        pass
keyed = rows().withWatermark("t", "10 seconds").groupBy(KEYS)
result = keyed.transformWithState(
    Kept(), "k string, why string, total string, seen string, by_j string", "append", "MODE")
"""


_ONE_VALUE = """from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
class Last(StatefulProcessor):
    def init(self, handle):
        self.handle = handle
        self.total = handle.getValueState("total", "n long", ttlDurationMs=HOUR)
    def handleInputRows(self, key, rows, timerValues):
        n = self.total.get()[0] if self.total.exists() else 0
        for row in rows:
            n += row.v
        self.total.update((n,))
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + HOUR)
        yield Row(k=key[0], n=n)
    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        yield Row(k=key[0], n=-1)
    def close(self):
        pass
result = rows().groupBy("k").transformWithState(Last(), "k string, n long", "append", "ProcessingTime")
"""


def _processor(mode: str = "None", timer: str = "pass", ttl: str = "", keys: str = '"k"') -> str:
    text = _PROCESSOR.replace("MODE", mode).replace("TIMER", timer).replace("KEYS", keys)
    return text.replace("TTL", f", {ttl}" if ttl else "")


_FUNCTION = """import pandas
from pyspark.sql.streaming.state import GroupStateTimeout
def total(key, frames, state):
    n, name = (int(state.get[0]), state.get[1]) if state.exists else (0, "")
    if state.hasTimedOut:
        state.remove()
        yield pandas.DataFrame({"k": [key[0]], "n": [n], "name": ["over " + name]})
        return
    for frame in frames:
        n, name = n + int(frame["v"].sum()), name + "".join(sorted(frame["j"]))
    state.update((n, name))
    TIMEOUT
    yield pandas.DataFrame({"k": [key[0]], "n": [n], "name": [name]})
keyed = rows().withWatermark("t", "10 seconds").groupBy("k")
result = keyed.applyInPandasWithState(
    total, "k string, n long, name string", "n long, name string", "append", GroupStateTimeout.KIND)
"""


def _function(kind: str, timeout: str = "pass") -> str:
    return _FUNCTION.replace("KIND", kind).replace("TIMEOUT", timeout)


_ROCKSDB_ALONE = ("rocksdb",)
_HOUR = 3_600_000
_AT_EVENT_TIMEOUT = "state.setTimeoutTimestamp(int(frame['t'].max().timestamp() * 1000) + 20_000)"
_AT_EVENT = "self.handle.registerTimer(int(row.t.timestamp() * 1000) + 10_000)"
_AT_CLOCK = f"self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + {_HOUR})"
_PYTHONS = (
    Operator("applyInPandasWithState", _function("NoTimeout")),
    Operator(
        "applyInPandasWithState, timeouts in event time",
        _function("EventTimeTimeout", _AT_EVENT_TIMEOUT),
    ),
    Operator(
        "applyInPandasWithState, timeouts in processing time",
        _function("ProcessingTimeTimeout", f"state.setTimeoutDuration({_HOUR})"),
        has_clock=True,
    ),
    Operator("transformWithState: value, list, map", _processor(), stores=_ROCKSDB_ALONE),
    Operator("transformWithState, timers in event time", _processor("EventTime", _AT_EVENT), stores=_ROCKSDB_ALONE),
    Operator(
        "transformWithState, timers in processing time",
        _processor("ProcessingTime", _AT_CLOCK),
        has_clock=True,
        stores=_ROCKSDB_ALONE,
    ),
    Operator(
        "transformWithState, time to live",
        _processor("ProcessingTime", ttl=f"ttlDurationMs={_HOUR}"),
        has_clock=True,
        stores=_ROCKSDB_ALONE,
    ),
    Operator("transformWithState, two keys", _processor(keys='"k", "j"'), stores=_ROCKSDB_ALONE),
)
OPERATORS: tuple[Operator, ...] = (
    Operator("aggregate, keys of fixed width", _aggregate(f'{WINDOW}, "w"', _SUM, 'count("*").alias("n")')),
    Operator("aggregate, text keys", _aggregate(f'{WINDOW}, "k"', _SUM, 'max("j").alias("m")')),
    Operator(
        "aggregate, nested keys",
        _aggregate(
            f'{WINDOW}, struct("k", struct("j", "w").alias("inner")).alias("n"), array("j", "k").alias("a")', _SUM
        ),
        in_ci=True,
    ),
    Operator(
        "aggregate, keys of decimals, dates, binary and boolean",
        _aggregate(
            f'{WINDOW}, col("v").cast("decimal(30,3)").alias("d"), col("t").cast("date").alias("day"), '
            'col("k").cast("binary").alias("b"), (col("w") > 3).alias("o"), col("t").cast("timestamp_ntz").alias("n")',
            _SUM,
        ),
    ),
    Operator("aggregate, sliding windows", _aggregate('window("t", "10 seconds", "5 seconds"), "k"', _SUM)),
    Operator(
        "aggregate, no rows yet",
        _aggregate(f'{WINDOW}, "k"', _SUM).replace(".groupBy", '.where("second(t) > 27 or minute(t) > 0").groupBy'),
    ),
    Operator("aggregate without a window (update)", f'rows().groupBy("k").agg({_SUM})', "update"),
    Operator("aggregate without a window (complete)", f'rows().groupBy("k", "j").agg({_SUM})', "complete"),
    Operator(
        "averages, decimals, deviations",
        _aggregate(
            f'{WINDOW}, "k"',
            'avg("v").alias("a")',
            _DECIMAL,
            'avg(col("v").cast("decimal(12,2)")).alias("da")',
            'stddev("v").alias("dev")',
        ),
    ),
    Operator(
        "first, last, min_by, of structs and maps",
        _aggregate(
            f'{WINDOW}, "k"',
            'first(struct("v", "j")).alias("f")',
            'last(create_map("j", "v")).alias("m")',
            'min_by("j", "v").alias("least")',
            'max(struct("t", "j")).alias("x")',
        ),
    ),
    Operator(
        "lists, sets, sketches",
        _aggregate(
            f'{WINDOW}, "k"',
            'collect_list("v").alias("l")',
            'sort_array(collect_set("j")).alias("u")',
            'approx_count_distinct("v").alias("d")',
            'percentile_approx("v", 0.5).alias("p")',
        ),
    ),
    Operator("one aggregate of everything", f"rows().agg({_SUM}, count('*').alias('n'))", "update"),
    Operator("session window", _aggregate('session_window("t", "3 seconds"), "k"', _SUM), in_ci=True),
    Operator(
        "session window with lists", _aggregate('session_window("t", "3 seconds"), "k"', 'collect_list("v").alias("l")')
    ),
    Operator("dropDuplicates", 'rows().dropDuplicates(["k", "j"])'),
    Operator("dropDuplicates with a watermark", f'{MARKED}.dropDuplicates(["k", "t"])'),
    Operator("dropDuplicatesWithinWatermark", f'{MARKED}.dropDuplicatesWithinWatermark(["k"])', in_ci=True),
    Operator("inner join", _joined("inner")),
    Operator("left outer join", _joined("left_outer")),
    Operator("right outer join", _joined("right_outer")),
    Operator("full outer join", _joined("full_outer")),
    Operator("left semi join", _joined("left_semi")),
    Operator("join of two keys, null keys match", _joined("left_outer", "lk <=> rk and lj = rj")),
    *_PYTHONS,
    Operator("limit", "rows().limit(95)", refused="an empty batch of the new version keeps no state"),
    Operator(
        "two aggregates, one above the other",
        f"inner = {_SHORT}\n"
        f'result = inner.groupBy(window("window", "10 seconds")).agg(sum("s").alias("s"), count("*").alias("n"))',
        in_ci=True,
    ),
    Operator(
        "a join, then an aggregate",
        _joined("inner") + '\nresult = result.groupBy(window("lt", "10 seconds"), "lk").agg(sum("rv").alias("s"))',
    ),
    Operator(
        "duplicates dropped, then an aggregate",
        f'{MARKED}.dropDuplicates(["k", "t"]).groupBy({WINDOW}, "k").agg({_SUM})',
    ),
    Operator(
        "two aggregates, side by side",
        f'one = {_SUMS}.select("k", "s")\n'
        f'other = rows("b").withWatermark("t", "10 seconds").groupBy({WINDOW}, "k").agg(max("v").alias("s"))\n'
        'other = other.select("k", "s")\n'
        "result = one.union(other)",
    ),
)


def _rows_of(operator: Operator) -> list[Row]:
    changes = [change for change in ALL if change.stores[0] in operator.stores]
    return [
        _row(operator, change, in_ci=operator.in_ci and (change == MOVED_AND_MORE or _is_raw(operator, change)))
        for change in changes
    ]


def _is_raw(operator: Operator, change: Change) -> bool:
    """Rows that are moved as bytes, of the operator with the most stores."""
    return change == MORE and operator.name == "left outer join"


def _row(operator: Operator, change: Change, *, in_ci: bool) -> Row:
    old, new = (
        operator.script(store, partitions, **settings)
        for store, partitions, settings in zip(change.stores, change.partitions, change.settings, strict=True)
    )
    return Row(
        f"{operator.name}: {change.name}",
        operator.name,
        change.name,
        old,
        new,
        change.asks,
        has_clock=operator.has_clock,
        in_ci=in_ci,
        refused=operator.refused,
    )


def _named(name: str) -> Operator:
    return next(each for each in OPERATORS if each.name == name)


def _with(text: str, *changes: tuple[str, str]) -> str:
    for was, now in changes:
        assert was in text, (was, text)
        text = text.replace(was, now)
    return text


def migrating(old: str, new: str, body: str, variable: str = "", **settings: str) -> Row:
    """A row with a function of this body as the migration of operator 0."""
    own = f", variable={variable!r}" if variable else ""
    text = "from airflow_streamstate.migration import migrate\n"
    text += f"@migrate(query='{QUERY}', operator='0'{own})\ndef new(key, state):\n    {body}\n"
    scripts = (Operator("", old).script("rocksdb", 3, **settings), Operator("", new).script("rocksdb", 5, **settings))
    return Row(body, "", body, *scripts, {"partitions": 5}, text)


def _migrated(name: str, operator: str, old: str, new: str, body: str, variable: str = "", **more: object) -> list[Row]:
    """Rows with a migration, of which the new version would hold just what it makes of the old state."""
    change = f"migration: {name}"
    own = f", variable={variable!r}" if variable else ""
    one = f"@migrate(query='{QUERY}', operator='0'{own})\ndef new(key, state):\n    {body}"
    functions = body if "@migrate" in body else one
    text = f"from airflow_streamstate.migration import migrate\n{functions}\n"
    stores = ("rocksdb", "hdfs") if more.pop("on_hdfs", False) else ("rocksdb",)
    return [
        Row(
            f"{operator}: {change}" + (", HDFS-backed to RocksDB" if store == "hdfs" else ""),
            operator,
            change + (", HDFS-backed to RocksDB" if store == "hdfs" else ""),
            Operator(operator, old).script(store, 3),
            Operator(operator, new).script("rocksdb", 5),
            {"partitions": 5, "state_store": "rocksdb"} if store == "hdfs" else {"partitions": 5},
            text,
            **more,  # type: ignore[arg-type]
        )
        for store in stores
    ]


_TOTAL = "n long, last timestamp, of struct<j string, d decimal(20,2)>"
_TWICE = (
    (_TOTAL, f"twice long, {_TOTAL}"),
    ("self.total.get()[0]", "self.total.get()[1]"),
    ("update((n + row.v, ", "update(((n + row.v) * 2, n + row.v, "),
)
_EVEN = (
    ('"v long, j string"', '"v long, even boolean, j string"'),
    ("(row.v, row.j)", "(row.v, row.v % 2 == 0, row.j)"),
)
_OF_PLACE = (
    ('"j string, odd boolean", "n long"', '"j string, odd boolean", "n long, of string"'),
    ("(had + row.v,)", "(had + row.v, row.j + str(row.v % 2 == 1))"),
)
_EACH = f"""
@migrate(query='{QUERY}', operator='0', variable='total')
def total(key, state):
    return {{**state, "twice": state["n"] * 2}}
@migrate(query='{QUERY}', operator='0', variable='seen')
def seen(key, state):
    return {{**state, "even": state["v"] % 2 == 0}}
@migrate(query='{QUERY}', operator='0', variable='by_j')
def by_j(key, state):
    return {{**state, "of": key["user_map_key.j"] + str(key["user_map_key.odd"])}}
"""
_EACH_IN_COLUMNS = f"""
@migrate(query='{QUERY}', operator='0', variable='total', vectorized=True)
def total(rows):
    return rows.withColumn("state", rows.state.withField("twice", rows.state.n * 2))
@migrate(query='{QUERY}', operator='0', variable='seen')
def seen(key, state):
    return {{**state, "even": state["v"] % 2 == 0}}
@migrate(query='{QUERY}', operator='0', variable='by_j', vectorized=True)
def by_j(rows):
    from pyspark.sql.functions import concat, initcap
    of = concat(rows.key["user_map_key.j"], initcap(rows.key["user_map_key.odd"].cast("string")))
    return rows.withColumn("state", rows.state.withField("of", of))
"""
_IN_COLUMNS = f"""
@migrate(query='{QUERY}', operator='0', vectorized=True)
def new(rows):
    return rows.withColumn("state", rows.state.dropFields("max"))
"""
_OVER_BATCHES = f"""
@migrate(query='{QUERY}', operator='0', vectorized=True)
def new(rows):
    import pyarrow
    def without(batches):
        for batch in batches:
            key, state = (batch.column(batch.schema.get_field_index(name)) for name in ("key", "state"))
            names = [each.name for each in state.type if each.name != "max"]
            kept = pyarrow.StructArray.from_arrays([state.field(name) for name in names], names)
            yield pyarrow.RecordBatch.from_arrays([key, kept], ["key", "state"])
    return rows.mapInArrow(without, rows.withColumn("state", rows.state.dropFields("max")).schema)
"""
_EACH_WITH_TTL = f"""
@migrate(query='{QUERY}', operator='0', variable='total')
def total(key, state):
    return {{**state, "value": {{**state["value"], "twice": state["value"]["n"] * 2}}}}
@migrate(query='{QUERY}', operator='0', variable='seen')
def seen(key, state):
    return {{**state, "value": {{**state["value"], "even": state["value"]["v"] % 2 == 0}}}}
@migrate(query='{QUERY}', operator='0', variable='by_j')
def by_j(key, state):
    of = key["user_map_key.j"] + str(key["user_map_key.odd"])
    return {{**state, "value": {{**state["value"], "of": of}}}}
"""
_TTL = _processor("ProcessingTime", ttl=f"ttlDurationMs={_HOUR}")
MIGRATED: tuple[Row, ...] = (
    *_migrated(
        "an aggregate removed",
        "aggregate, text keys",
        _aggregate(f'{WINDOW}, "k"', _SUM, 'max("v").alias("m")'),
        _SUMS,
        'return {"sum": state["sum"]}',
        on_hdfs=True,
        in_ci=True,
    ),
    *_migrated(
        "an aggregate removed, in columns",
        "aggregate, text keys",
        _aggregate(f'{WINDOW}, "k"', _SUM, 'max("v").alias("m")'),
        _SUMS,
        _IN_COLUMNS,
        on_hdfs=True,
        in_ci=True,
    ),
    *_migrated(
        "another type, nested keys, decimals",
        "aggregate, nested keys",
        _aggregate(f'{WINDOW}, struct("k", struct("j", "w").alias("inner")).alias("n")', _SUM, 'max("t").alias("m")'),
        _aggregate(
            f'{WINDOW}, struct("k", struct("j", "w").alias("inner")).alias("n")', _DECIMAL, 'max("t").alias("m")'
        ),
        'return {**state, "sum": __import__("decimal").Decimal(state["sum"]), "isEmpty": False}',
    ),
    *_migrated(
        "an aggregate removed",
        "session window",
        _aggregate('session_window("t", "3 seconds"), "k"', _SUM, 'max("v").alias("m")'),
        _aggregate('session_window("t", "3 seconds"), "k"', _SUM),
        'return {name: each for name, each in state.items() if name != "max"}',
        on_hdfs=True,
    ),
    *_migrated(
        "an aggregate removed, over Arrow batches",
        "session window",
        _aggregate('session_window("t", "3 seconds"), "k"', _SUM, 'max("v").alias("m")'),
        _aggregate('session_window("t", "3 seconds"), "k"', _SUM),
        _OVER_BATCHES,
    ),
    *_migrated(
        "another state",
        "applyInPandasWithState, timeouts in event time",
        _function("EventTimeTimeout", _AT_EVENT_TIMEOUT),
        _with(
            _function("EventTimeTimeout", _AT_EVENT_TIMEOUT),
            ('"n long, name string", "append"', '"name string, twice long, n long", "append"'),
            ("int(state.get[0]), state.get[1]", "int(state.get[2]), state.get[0]"),
            ("state.update((n, name))", "state.update((name, n * 2, n))"),
        ),
        'return {**state, "groupState": {**state["groupState"], "twice": state["groupState"]["n"] * 2}}',
        on_hdfs=True,
    ),
    *_migrated(
        "a value variable next to others",
        "transformWithState, timers in event time",
        _processor("EventTime", _AT_EVENT),
        _with(_processor("EventTime", _AT_EVENT), *_TWICE),
        'return {**state, "twice": state["n"] * 2}',
        "total",
    ),
    *_migrated(
        "value, list and map variables",
        "transformWithState: value, list, map",
        _processor(),
        _with(_processor(), *_TWICE, *_EVEN, *_OF_PLACE),
        _EACH,
    ),
    *_migrated(
        "value and map variables in columns",
        "transformWithState: value, list, map",
        _processor(),
        _with(_processor(), *_TWICE, *_EVEN, *_OF_PLACE),
        _EACH_IN_COLUMNS,
    ),
    *_migrated(
        "value, list and map variables",
        "transformWithState, time to live",
        _TTL,
        _with(_TTL, *_TWICE, *_EVEN, *_OF_PLACE),
        _EACH_WITH_TTL,
        has_clock=True,
    ),
    *_migrated(
        "a column removed from one side",
        "left outer join",
        _joined("left_outer", select='.select("lk", "lv", "rv", "lj")'),
        _joined("left_outer", select='.select("lk", "lv", "rv")'),
        'return {name: each for name, each in state.items() if name != "lj"}',
        "left",
        on_hdfs=True,
    ),
)
ROWS: tuple[Row, ...] = (
    *MIGRATED,
    *(row for operator in OPERATORS for row in _rows_of(operator)),
    *(
        _row(_named(name), change, in_ci=name == "session window" and change in FORMATS[:2])
        for name in ("session window", "full outer join")
        for change in FORMATS
    ),
    _row(_named("transformWithState: value, list, map"), FORMATS[0], in_ci=False),
    _row(_named("transformWithState: value, list, map"), AVRO, in_ci=False),
    *(
        _row(_named(name), change, in_ci=False)
        for name in ("aggregate, text keys", "inner join", "one aggregate of everything")
        for change in FULL
    ),
)
