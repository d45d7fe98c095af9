"""The conformance suite of source connectors: ours pass, and it names what a wrong one breaks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace

import pytest

from airflow_streamstate.connectors import testing as conformance
from airflow_streamstate.connectors.plain import RateSource
from airflow_streamstate.connectors.registry import SOURCES, find_connectors
from airflow_streamstate.connectors.source import Narrowed, OffsetOrder, Source, SourceConnector
from airflow_streamstate.sources.interface import remember
from airflow_streamstate.sources.offsets import PartOffset, SourceOffset, to_text
from support.listed_source import ListedSource, Shelf, numbers

OWN: dict[str, list[Source]] = {
    "file": [
        Source("json", {"path": "/data/in"}),
        Source("parquet", {"path": "s3a://bucket/in"}),
        Source("csv", {"path": "/data/other"}, table="db.files"),
    ],
    "kafka": [
        Source("kafka", {"subscribe": "flights", "kafka.bootstrap.servers": "a:9092"}),
        Source("kafka", {"subscribe": "flights,orders"}),
        Source("kafka", {"subscribepattern": "flights.*"}),
        Source("kafka", {"assign": '{"flights":[0,1]}'}),
    ],
    "partitioned": [
        Source("listed_parts", {"path": "/data/in"}),
        Source("listed_parts", {"path": "/data/other", "spool": "/spool"}),
    ],
    "rate": [Source("rate"), Source("rate", {"rowspersecond": "5"}), Source("rate-micro-batch")],
    "socket": [Source("socket", {"host": "a", "port": "1"}), Source("socket", {"host": "a", "port": "2"})],
    "table": [
        Source("delta", {"path": "/data/delta"}),
        Source("iceberg", table="lake.db.flights"),
        Source("iceberg", table="lake.db.orders"),
    ],
}
OFFSETS = {
    "file": ['{"logOffset":0}', '{"logOffset":7}', '{"logOffset":10}'],
    "kafka": [
        '{"flights":{"0":5}}',
        '{"flights":{"0":5,"1":0}}',
        '{"flights":{"1":3,"0":5}}',
        '{"flights":{"0":10,"1":3},"orders":{"0":1}}',
    ],
    "partitioned": [
        to_text(SourceOffset("x")),
        to_text(SourceOffset("x", parts={"a": PartOffset(5, units=5)})),
        to_text(SourceOffset("x", parts={"a": PartOffset(5, units=5), "b": PartOffset(2, 1, units=2)})),
        to_text(SourceOffset("x", parts={"a": PartOffset(9, units=9), "b": PartOffset(2, 1, 1, "d", units=3)})),
    ],
    "rate": ["0", "9", "10"],
    "socket": ["-1", "9", "10"],
    "table": [
        '{"reservoirVersion":1,"index":-1}',
        '{"reservoirVersion":1,"index":4}',
        '{"reservoirVersion":10,"index":0}',
    ],
}


class ListedParts(ListedSource):
    name = "listed_parts"
    identifying = ("path",)

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(SHELF)
        self.options = options


SHELF = Shelf({"a": numbers(0, 9), "b": numbers(0, 4)})


@pytest.fixture(autouse=True)
def registered() -> None:
    """As a script's ``register`` does, without a Spark."""
    remember(ListedParts)


def ours() -> dict[str, SourceConnector]:
    """The connectors of this package, by their names."""
    return {connector.name: connector for connector in find_connectors(SOURCES, SourceConnector).connectors}


@pytest.mark.parametrize("name", sorted(OWN))
def test_ours_keep_the_promises_of_a_source_connector(name: str) -> None:
    """Identity, order of offsets, remarks and hidden credentials, as of every connector."""
    foreign = [source for other, sources in OWN.items() if other != name for source in sources]
    if name == "table":  # a table of files is a source of files, and the connector of files is asked first
        foreign = [source for source in foreign if not source.table]
    conformance.check_source(ours()[name], OWN[name], foreign, OFFSETS[name])


def test_every_connector_of_ours_is_held_to_them() -> None:
    """None is left out of the suite."""
    assert sorted(ours()) == sorted(OWN)


@pytest.mark.parametrize("name", ["file", "rate"])
def test_ours_that_lose_nothing_say_so(name: str) -> None:
    """What cannot be known is not reported, and nothing is called lost."""
    opened = ours()[name].open(OWN[name][0], None)  # type: ignore[arg-type]
    conformance.check_open_source(opened, OFFSETS[name][0], OFFSETS[name][-1], None)


def test_a_partitioned_source_tells_its_lag_by_its_parts() -> None:
    """And what of its parts, and of rows that were read ahead, is not there any more."""
    source = OWN["partitioned"][0]
    start = to_text(SourceOffset("x", parts={"a": PartOffset(4, units=4)}))
    end = to_text(SourceOffset("x", parts={"a": PartOffset(10, units=10), "b": PartOffset(5, units=5)}))
    connector = ours()["partitioned"]
    conformance.check_open_source(connector.open(source, None), start, end, 11)  # type: ignore[arg-type]
    opened = connector.open(source, None)  # type: ignore[arg-type]
    gone = to_text(SourceOffset("x", parts={"z": PartOffset(4, units=4), "a": PartOffset(4, units=4)}))
    found = opened.preflight(gone, {})
    assert [(one.part, one.reason) for one in found.lost] == [("z", "gone")]
    kept = SourceOffset("x", first_chunk=1, parts={"a": PartOffset(4, units=4)})
    assert found.readable == to_text(kept), "a part that comes back gets no chunk of before"
    cut = to_text(SourceOffset("x", parts={"a": PartOffset(4, 1, 2, "digest", units=6)}))
    assert [(one.part, one.reason) for one in opened.preflight(cut, {}).lost] == [("a", "removed")]


def test_a_table_tells_its_lag_in_versions() -> None:
    """By its own history; for another format it is unknown, with the reason."""
    door = SimpleNamespace(session=SimpleNamespace(sql=lambda _: SimpleNamespace(first=lambda: {"version": 9})))
    source = OWN["table"][0]
    conformance.check_open_source(
        ours()["table"].open(source, door),  # type: ignore[arg-type]
        '{"reservoirVersion":7,"index":-1}',
        '{"reservoirVersion":10,"index":-1}',
        3,
    )
    iceberg = '{"snapshot_id":7,"position":1}'
    conformance.check_open_source(ours()["table"].open(OWN["table"][1], door), iceberg, iceberg, None)  # type: ignore[arg-type]


class Forgetful(RateSource):
    """Breaks one promise, named by the test."""

    breaks = ""

    def narrow(self, source: Source, offset: str) -> Narrowed | None:
        left = {"a": "3"} if self.breaks != "leaves nothing out" else {}
        read = frozenset({"a"} if self.breaks == "overlap" else {"b"})
        is_part = offset != "kept" or self.breaks == "of what it kept"
        return Narrowed("kept", read, left, is_named=True) if is_part else None

    def identify(self, source: Source) -> str | None:
        if self.breaks == "shows a credential" and "password" in source.options:
            return f"rate {source.options['password']}"
        if self.breaks == "takes another's":
            return f"rate {source.format} {sorted(source.options.items())}"
        return "rate" if self.breaks == "one identity" else super().identify(source)

    def compare(self, first: str, second: str) -> OffsetOrder:
        if self.breaks == "of another kind" and first.startswith('"'):
            return "apart"
        return "same" if self.breaks == "is ahead of" else super().compare(first, second)

    def explain(self, failure: str) -> str | None:
        return "a guess" if self.breaks == "explains what it does not know" else None


@pytest.mark.parametrize(
    ("breaks", "said"),
    [
        ("shows a credential", "credential"),
        ("takes another's", "credential|different kind"),
        ("one identity", "one identity"),
        ("of another kind", "of another kind"),
        ("is ahead of", "is behind of|is ahead of"),
        ("explains what it does not know", "explains what it does not know"),
        ("leaves nothing out", "leaves nothing out"),
        ("overlap", "overlap"),
        ("of what it kept", "of what it kept"),
    ],
)
def test_what_is_wrong_with_an_connector_is_said(breaks: str, said: str) -> None:
    """A promise that is broken is the error's sentence."""
    connector = Forgetful()
    connector.breaks = breaks
    foreign: Sequence[Source] = OWN["kafka"]
    with pytest.raises(AssertionError, match=said):
        conformance.check_source(connector, OWN["rate"], foreign, OFFSETS["rate"])
    connector.breaks = ""
    conformance.check_source(connector, OWN["rate"], foreign, OFFSETS["rate"])
