"""The truth table of upgrades: a script, another script, and the promised verdict.

``test_truth_table`` tries each row on real Spark; ``docs/upgrades.py`` makes a page of it. A script is the text of a
data frame over ``rows()``, with Spark's functions at hand; several lines end with ``result = …``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
STATE_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
PARTITIONS = "spark.sql.shuffle.partitions"
TIME_ZONE = "spark.sql.session.timeZone"
ANSI = "spark.sql.ansi.enabled"


@dataclass(frozen=True)
class Script:
    """One version of a query.

    Attributes:
        settings: of the session, where they are not the usual ones.
    """

    text: str
    mode: str = "append"
    settings: Mapping[str, str] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash((self.text, self.mode, tuple(sorted(self.settings.items()))))


@dataclass(frozen=True)
class Row:
    """One change.

    Attributes:
        codes: of the differences that make this verdict.
        spark: what Spark does with the new one on the checkpoint of the old one: ``refused``, ``right`` (its rows are
            those that it would have written had it run from the beginning) or ``mixed`` (they are not, and Spark
            reports nothing).
        needs_workers: whether Python's workers run in it, which take seconds to start: tried by name.
    """

    name: str
    change: str
    old: Script
    new: Script
    verdict: str
    codes: tuple[str, ...]
    spark: str
    needs_workers: bool = False


def _s(text: str, mode: str = "append", **settings: str) -> Script:
    return Script(text, mode, {_KEYS[key]: value for key, value in settings.items()})


_KEYS = {
    "provider": PROVIDER,
    "changelog": CHANGELOG,
    "state_format": STATE_FORMAT,
    "partitions": PARTITIONS,
    "zone": TIME_ZONE,
    "ansi": ANSI,
}

MARKED = 'rows().withWatermark("t", "10 seconds")'
SUMS = MARKED + '.groupBy(window("t", "10 seconds"), "k").agg(sum("v").alias("s"))'
SESSIONS = MARKED + '.groupBy(session_window("t", "5 seconds"), "k").agg(sum("v").alias("s"))'
ONCE = MARKED + '.dropDuplicatesWithinWatermark(["k"])'
ONCE_AT_A_TIME = MARKED + '.dropDuplicates(["k", "t"])'
_SIDES = """l = rows("a").withWatermark("t", "10 seconds").selectExpr("t as lt", "k as lk", "j as lj", "v as lv")
r = rows("b").withWatermark("t", "10 seconds").selectExpr("t as rt", "k as rk", "j as rj", "v as rv")
"""


def _with(text: str, *changes: tuple[str, str]) -> str:
    """The text with each of these changes, which have to be possible."""
    for was, now in changes:
        assert was in text, (was, text)
        text = text.replace(was, now, 1)
    return text


def _joined(keys: str = "lk = rk", seconds: int = 5, how: str = "inner", order: str = "lr", tail: str = "") -> str:
    condition = f"{keys} and rt >= lt and rt <= lt + interval {seconds} seconds"
    left, right = order
    select = tail or '.select("lk", "lv", "rv")'
    return f'{_SIDES}result = {left}.join({right}, expr("{condition}"), "{how}"){select}'


def _union(order: str) -> str:
    more = _with(SUMS, (".groupBy", '.withColumn("v", col("v") + 1).groupBy')) + '.select("k", "s")'
    twice = _with(SUMS, (".groupBy", '.withColumn("v", col("v") * 2).groupBy')) + '.select("k", "s")'
    first, second = order.split()
    return f"more = {more}\ntwice = {twice}\nresult = {first}.union({second})"


_BEFORE = ".groupBy"
_SUM = 'sum("v").alias("s")'
_KEY = ', "k")'
_WINDOW = 'window("t", "10 seconds")'
_DELAY = 'withWatermark("t", "10 seconds")'
_BOTH = _with(SUMS, (_SUM, 'sum("v").alias("s"), max("v").alias("m")'))
_TWO_SOURCES = _with(SUMS, ("rows()", 'rows("a").union(rows("b"))'))
_PAIR = _with(SUMS, (_KEY, ', "k", "j")'))
_UDF = 'f = udf(lambda v: {body}, "long")\nresult = ' + _with(SUMS, (_SUM, 'sum(f("v")).alias("s")'))


def _row(name: str, change: str, old: str | Script, new: str | Script, told: str, *codes: str, spark: str) -> Row:
    versions = [each if isinstance(each, Script) else Script(each) for each in (old, new)]
    return Row(name, change, *versions, _VERDICTS[told], codes, spark, "import pandas" in versions[0].text)


_PROCESSOR = """import pandas
from pyspark.sql.streaming import StatefulProcessor
class Totals(StatefulProcessor):
    def init(self, handle):
        self.total = handle.getValueState("total", "n long")
    def handleInputRows(self, key, frames, timers):
        n = int(self.total.get()[0]) if self.total.exists() else 0
        for frame in frames:
            n += int(frame["v"].sum())
        self.total.update((n,))
        yield pandas.DataFrame({"k": [key[0]], "n": [n]})
    def close(self):
        pass
keyed = rows().withWatermark("t", "10 seconds").groupBy("k")
result = keyed.transformWithStateInPandas(Totals(), "k string, n long", "append", "None")
"""
_FUNCTION = """import pandas
from pyspark.sql.streaming.state import GroupStateTimeout
def total(key, frames, state):
    n = int(state.get[0]) if state.exists else 0
    for frame in frames:
        n += int(frame["v"].sum())
    state.update((n,))
    yield pandas.DataFrame({"k": [key[0]], "n": [n]})
keyed = rows().withWatermark("t", "10 seconds").groupBy("k")
result = keyed.applyInPandasWithState(total, "k string, n long", "n long", "append", GroupStateTimeout.NoTimeout)
"""


def processor(*changes: tuple[str, str]) -> Script:
    """Totals per key by a ``transformWithState``, changed."""
    return _s(_with(_PROCESSOR, *changes), provider=ROCKSDB)


_VERDICTS = {"same": "same", "restore": "state-compatible", "drain": "needs-drain", "person": "hazardous"}

ROWS: tuple[Row, ...] = (
    _row("nothing", "nothing", SUMS, SUMS, "same", spark="right"),
    _row(
        "spelling",
        "variables renamed, other white space",
        SUMS,
        f"counted = ({SUMS})\nresult = counted",
        "same",
        spark="right",
    ),
    # above the state
    _row(
        "aggregate renamed",
        "an aggregate called otherwise",
        SUMS,
        _with(SUMS, ('"s"', '"total"')),
        "restore",
        "output-columns-changed",
        spark="right",
    ),
    _row(
        "key renamed",
        "a key called otherwise",
        SUMS,
        _with(SUMS, (_KEY, ', col("k").alias("key"))')),
        "restore",
        "output-columns-changed",
        spark="right",
    ),
    _row(
        "projection above",
        "a column computed above the state",
        SUMS,
        SUMS + '.select("k", "s", (col("s") * 2).alias("d"))',
        "restore",
        "output-changed",
        "output-columns-changed",
        spark="right",
    ),
    _row(
        "filter above",
        "a filter above the state",
        SUMS,
        SUMS + '.where("s > 10")',
        "restore",
        "output-changed",
        spark="right",
    ),
    _row(
        "filter above changed",
        "another filter above the state",
        SUMS + '.where("s > 100")',
        SUMS + '.where("s > 10")',
        "restore",
        "output-changed",
        spark="right",
    ),
    # below the state
    _row(
        "filter below",
        "a filter before the state",
        SUMS,
        _with(SUMS, (_BEFORE, '.where("v > 30").groupBy')),
        "drain",
        "input-changed",
        spark="mixed",
    ),
    _row(
        "column never used",
        "one more column that is not used",
        SUMS,
        _with(SUMS, (_BEFORE, '.withColumn("unused", col("v") * 2).groupBy')),
        "same",
        spark="right",
    ),
    _row(
        "filter below changed",
        "another filter before the state",
        _with(SUMS, (_BEFORE, '.where("v > 100").groupBy')),
        _with(SUMS, (_BEFORE, '.where("v > 4").groupBy')),
        "drain",
        "input-changed",
        spark="mixed",
    ),
    _row(
        "column below changed",
        "a column computed otherwise before the state",
        _with(SUMS, (_BEFORE, '.withColumn("v", col("v") + 1).groupBy')),
        _with(SUMS, (_BEFORE, '.withColumn("v", col("v") * 2).groupBy')),
        "drain",
        "input-changed",
        spark="mixed",
    ),
    # keys
    _row("key added", "a grouping key more", SUMS, _PAIR, "drain", "key-added", spark="refused"),
    _row("key removed", "a grouping key less", _PAIR, SUMS, "drain", "key-removed", spark="refused"),
    _row(
        "keys reordered",
        "two keys of one type in another order",
        _PAIR,
        _with(_PAIR, ('"k", "j"', '"j", "k"')),
        "drain",
        "keys-reordered",
        spark="mixed",
    ),
    _row(
        "keys of two types reordered",
        "keys of two types in another order",
        SUMS,
        _with(SUMS, (_WINDOW + _KEY, '"k", ' + _WINDOW + ")")),
        "drain",
        "keys-reordered",
        spark="refused",
    ),
    _row(
        "key expression",
        "a key of another expression of the same type",
        SUMS,
        _with(SUMS, (_KEY, ', upper("k").alias("k"))')),
        "drain",
        "key-changed",
        spark="mixed",
    ),
    _row(
        "key column",
        "another column of the same type as key",
        SUMS,
        _with(SUMS, (_KEY, ', col("j").alias("k"))')),
        "drain",
        "key-changed",
        spark="mixed",
    ),
    # aggregates
    _row("aggregate added", "an aggregate more", SUMS, _BOTH, "drain", "aggregate-added", spark="refused"),
    _row("aggregate removed", "an aggregate less", _BOTH, SUMS, "drain", "aggregate-removed", spark="refused"),
    _row(
        "aggregate no more used",
        "a projection that drops an aggregate",
        _BOTH,
        _BOTH + '.select("k", "s")',
        "drain",
        "aggregate-removed",
        spark="refused",
    ),
    _row(
        "aggregates reordered",
        "two aggregates of one type in another order",
        _BOTH,
        _with(_BOTH, (_SUM + ', max("v").alias("m")', 'max("v").alias("m"), ' + _SUM)),
        "drain",
        "aggregates-reordered",
        spark="mixed",
    ),
    _row(
        "aggregate type",
        "an aggregate of another type",
        SUMS,
        _with(SUMS, (_SUM, 'sum(col("v").cast("double")).alias("s")')),
        "drain",
        "aggregate-changed",
        spark="refused",
    ),
    _row(
        "aggregate function",
        "another function of the same type",
        SUMS,
        _with(SUMS, (_SUM, 'max("v").alias("s")')),
        "drain",
        "aggregate-changed",
        spark="mixed",
    ),
    _row(
        "aggregate expression",
        "the same function of another column",
        SUMS,
        _with(SUMS, (_SUM, 'sum("w").alias("s")')),
        "drain",
        "aggregate-changed",
        spark="mixed",
    ),
    # windows
    _row(
        "window length",
        "another length of the window",
        SUMS,
        _with(SUMS, (_WINDOW, 'window("t", "20 seconds")')),
        "drain",
        "window-changed",
        spark="mixed",
    ),
    _row(
        "window slide",
        "a window that slides",
        SUMS,
        _with(SUMS, (_WINDOW, 'window("t", "10 seconds", "5 seconds")')),
        "drain",
        "window-changed",
        spark="refused",
    ),
    _row(
        "window start",
        "another start of the window",
        SUMS,
        _with(SUMS, (_WINDOW, 'window("t", "10 seconds", "10 seconds", "3 seconds")')),
        "drain",
        "window-changed",
        spark="mixed",
    ),
    _row(
        "window to session",
        "a session in place of a window",
        SUMS,
        SESSIONS,
        "drain",
        "operator-kind-changed",
        spark="refused",
    ),
    _row(
        "session gap",
        "another gap of the session",
        SESSIONS,
        _with(SESSIONS, ('"5 seconds"', '"2 seconds"')),
        "drain",
        "window-changed",
        spark="mixed",
    ),
    # watermarks
    _row(
        "delay shorter",
        "a shorter delay of the watermark",
        SUMS,
        _with(SUMS, (_DELAY, 'withWatermark("t", "2 seconds")')),
        "drain",
        "watermark-delay-changed",
        spark="mixed",
    ),
    _row(
        "delay longer",
        "a longer delay of the watermark",
        SUMS,
        _with(SUMS, (_DELAY, 'withWatermark("t", "60 seconds")')),
        "drain",
        "watermark-delay-changed",
        spark="mixed",
    ),
    _row(
        "watermark column",
        "another column of event time",
        SUMS,
        _with(SUMS, ('"t"', '"u"'), ('"t"', '"u"')),
        "drain",
        "watermark-column-changed",
        "window-changed",
        spark="mixed",
    ),
    _row(
        "watermark removed",
        "no watermark any more (update mode)",
        _s(SUMS, "update"),
        _s(_with(SUMS, ("." + _DELAY, "")), "update"),
        "drain",
        "watermark-removed",
        spark="mixed",
    ),
    _row(
        "watermark added",
        "a watermark, and there was none before (update mode)",
        _s(_with(SUMS, ("." + _DELAY, "")), "update"),
        _s(SUMS, "update"),
        "drain",
        "watermark-added",
        spark="mixed",
    ),
    # duplicates
    _row(
        "dedup key",
        "duplicates by another column of the same type",
        ONCE,
        _with(ONCE, ('"k"', '"j"')),
        "drain",
        "key-changed",
        spark="mixed",
    ),
    _row(
        "dedup key added",
        "duplicates by a column more",
        ONCE,
        _with(ONCE, ('"k"', '"k", "j"')),
        "drain",
        "key-added",
        spark="refused",
    ),
    _row(
        "dedup within watermark",
        "dropDuplicates becomes dropDuplicatesWithinWatermark",
        ONCE_AT_A_TIME,
        _with(ONCE_AT_A_TIME, ("dropDuplicates", "dropDuplicatesWithinWatermark")),
        "drain",
        "operator-kind-changed",
        spark="refused",
    ),
    _row(
        "dedup delay",
        "duplicates looked for over a shorter time",
        ONCE,
        _with(ONCE, (_DELAY, 'withWatermark("t", "2 seconds")')),
        "drain",
        "watermark-delay-changed",
        spark="mixed",
    ),
    # joins
    _row(
        "join type",
        "an inner join becomes a left outer one",
        _joined(),
        _joined(how="leftOuter"),
        "restore",
        "join-type-changed",
        spark="right",
    ),
    _row(
        "join to semi",
        "an inner join becomes a left semi one",
        _joined(tail='.select("lk", "lv")'),
        _joined(how="leftSemi", tail='.select("lk", "lv")'),
        "restore",
        "join-type-changed",
        spark="right",
    ),
    _row(
        "join from semi",
        "a left semi join becomes an inner one",
        _joined(how="leftSemi", tail='.select("lk", "lv")'),
        _joined(tail='.select("lk", "lv")'),
        "drain",
        "join-type-changed",
        spark="refused",
    ),
    _row(
        "join from outer",
        "a left outer join becomes an inner one",
        _joined(how="leftOuter"),
        _joined(),
        "restore",
        "join-type-changed",
        spark="right",
    ),
    _row(
        "join bound",
        "another time bound of a join",
        _joined(),
        _joined(seconds=9),
        "drain",
        "join-condition-changed",
        spark="mixed",
    ),
    _row(
        "join key",
        "another key of a join",
        _joined(),
        _joined("lj = rj"),
        "drain",
        "join-condition-changed",
        "join-columns-changed",
        spark="refused",
    ),
    _row(
        "join columns",
        "a column more above a join",
        _joined(),
        _joined(tail='.select("lk", "lv", "rv", "lj")'),
        "drain",
        "join-columns-changed",
        spark="refused",
    ),
    _row(
        "join sides",
        "the sides of a join swapped",
        _joined(),
        _joined(order="rl"),
        "drain",
        "sources-reordered",
        "join-sides-swapped",
        spark="refused",
    ),
    # operators
    _row(
        "operator added",
        "an operator with state before another",
        SUMS,
        _with(SUMS, (_BEFORE, '.dropDuplicates(["k", "t"]).groupBy')),
        "drain",
        "operator-added",
        spark="refused",
    ),
    _row(
        "operator removed",
        "an operator with state taken away",
        _with(SUMS, (_BEFORE, '.dropDuplicates(["k", "t"]).groupBy')),
        SUMS,
        "drain",
        "operator-removed",
        spark="refused",
    ),
    _row(
        "first operator",
        "state where there was none",
        MARKED,
        ONCE_AT_A_TIME,
        "drain",
        "operator-added",
        spark="refused",
    ),
    _row("last operator", "no state any more", ONCE_AT_A_TIME, MARKED, "drain", "operator-removed", spark="refused"),
    _row(
        "operators swapped",
        "two operators of one shape change places",
        _union("more twice"),
        _union("twice more"),
        "drain",
        "operators-swapped",
        spark="mixed",
    ),
    _row(
        "limit",
        "another limit",
        'rows().select("k", "v").limit(4)',
        'rows().select("k", "v").limit(14)',
        "person",
        "limit-changed",
        spark="mixed",
    ),
    # functions with state
    _row(
        "processor renamed",
        "a processor has another name",
        processor(),
        processor(("Totals", "Sums"), ("Totals", "Sums")),
        "same",
        spark="right",
    ),
    _row(
        "processor key",
        "a processor's key is another column",
        processor(),
        processor(('groupBy("k")', 'groupBy("j")')),
        "drain",
        "key-changed",
        spark="mixed",
    ),
    _row(
        "processor time mode",
        "another time mode of a processor",
        processor(),
        processor(('"None"', '"EventTime"')),
        "drain",
        "time-mode-changed",
        spark="refused",
    ),
    _row(
        "processor output mode",
        "another output mode of a processor",
        processor(),
        processor(('"append"', '"update"')),
        "drain",
        "operator-mode-changed",
        spark="refused",
    ),
    _row(
        "function state",
        "another schema of a function's state",
        _FUNCTION,
        _with(_FUNCTION, ("(n,)", "(n, n)"), ('"n long"', '"n long, m long"')),
        "drain",
        "state-schema-changed",
        spark="refused",
    ),
    _row(
        "function timeout",
        "another timeout of a function with state",
        _FUNCTION,
        _with(_FUNCTION, ("NoTimeout", "EventTimeTimeout")),
        "drain",
        "timeout-changed",
        spark="refused",
    ),
    # sources
    _row(
        "source path",
        "another path",
        SUMS,
        _with(SUMS, ("rows()", 'rows("b")')),
        "person",
        "source-replaced",
        spark="refused",
    ),
    _row(
        "source added", "a source more", SUMS, _TWO_SOURCES, "drain", "source-added", "input-changed", spark="refused"
    ),
    _row(
        "source removed",
        "a source less",
        _TWO_SOURCES,
        SUMS,
        "drain",
        "source-removed",
        "input-changed",
        spark="refused",
    ),
    _row(
        "sources reordered",
        "the same sources in another order",
        _TWO_SOURCES,
        _with(SUMS, ("rows()", 'rows("b").union(rows("a"))')),
        "drain",
        "sources-reordered",
        spark="refused",
    ),
    _row(
        "source format",
        "the same files read in another format, without state",
        'rows("a", schema="value string", source="text")',
        'rows("a", schema="value string", source="csv", sep="|")',
        "restore",
        "source-format-changed",
        "source-reading-changed",
        spark="right",
    ),
    _row(
        "source pace",
        "maxFilesPerTrigger",
        SUMS,
        _with(SUMS, ("rows()", "rows(maxFilesPerTrigger=2)")),
        "restore",
        "source-pace-changed",
        spark="right",
    ),
    _row(
        "source columns",
        "a wider schema of a source",
        _with(SUMS, ("rows()", 'rows(schema="t timestamp, k string, v long")')),
        SUMS,
        "restore",
        "source-columns-changed",
        spark="right",
    ),
    # output
    _row(
        "append to update",
        "append becomes update",
        SUMS,
        _s(SUMS, "update"),
        "restore",
        "output-mode-changed",
        spark="right",
    ),
    _row(
        "update to append",
        "update becomes append",
        _s(SUMS, "update"),
        SUMS,
        "restore",
        "output-mode-changed",
        spark="right",
    ),
    _row(
        "append to complete",
        "append becomes complete",
        SUMS,
        _s(SUMS, "complete"),
        "person",
        "output-mode-complete",
        spark="mixed",
    ),
    _row(
        "complete to append",
        "complete becomes append",
        _s(SUMS, "complete"),
        SUMS,
        "person",
        "output-mode-complete",
        spark="mixed",
    ),
    # state and settings
    _row(
        "partitions",
        "another number of partitions",
        SUMS,
        _s(SUMS, partitions="3"),
        "restore",
        "partitions-changed",
        spark="right",
    ),
    _row(
        "provider",
        "another state store",
        SUMS,
        _s(SUMS, provider=ROCKSDB),
        "restore",
        "provider-changed",
        spark="right",
    ),
    _row(
        "changelog",
        "changelogs switched on",
        _s(SUMS, provider=ROCKSDB),
        _s(SUMS, provider=ROCKSDB, changelog="true"),
        "restore",
        "changelog-changed",
        spark="right",
    ),
    _row(
        "state format",
        "state checkpoint format 2",
        _s(SUMS, provider=ROCKSDB),
        _s(SUMS, provider=ROCKSDB, state_format="2"),
        "drain",
        "checkpoint-format-changed",
        spark="refused",
    ),
    _row(
        "time zone",
        "another time zone, without state",
        'rows().select("k", "v")',
        _s('rows().select("k", "v")', zone="Asia/Tokyo"),
        "restore",
        "setting-harmless",
        spark="right",
    ),
    _row(
        "time zone read",
        "another time zone that a key reads",
        _with(SUMS, (_KEY, ', date_format("t", "HH:ss").alias("k"))')),
        _s(_with(SUMS, (_KEY, ', date_format("t", "HH:ss").alias("k"))')), zone="Asia/Tokyo"),
        "drain",
        "setting-changed",
        spark="mixed",
    ),
    _row(
        "ansi off",
        "ANSI switched off",
        _s(SUMS, ansi="true"),
        _s(SUMS, ansi="false"),
        "restore",
        "setting-harmless",
        spark="right",
    ),
    _row(
        "ansi on",
        "ANSI switched on over what was no number",
        _s(_with(SUMS, (_KEY, ', expr("v div (v - 16) as k"))')), ansi="false"),
        _s(_with(SUMS, (_KEY, ', expr("v div (v - 16) as k"))')), ansi="true"),
        "drain",
        "setting-changed",
        spark="mixed",
    ),
)
"""Each is tried as it is, and in this order. Queries and sinks have rows of their own in ``test_truth_table``."""

SEEDED = frozenset(
    {"filter below", "key added", "window length", "delay shorter", "dedup key", "join bound", "operator added"}
    | {"first operator", "operators swapped", "source added", "sources reordered", "state format"}
)
"""One row of each kind, that is drained and seeded each time."""

UNSEEN = (Script(_UDF.format(body="v + 1")), Script(_UDF.format(body="v * 2")))
"""Two scripts of which no plan shows the difference."""

VARIABLES = {
    "added": (
        ("getValueState", 'getMapState("seen", "k string", "n long")\n        self.total = handle.getValueState'),
    ),
    "changed": (('"total", "n long"', '"total", "n double"'),),
}
"""Changes of the variables of ``processor``, which a plan does not show."""
