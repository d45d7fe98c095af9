"""The sources of an attempt: no error of a connector gets out."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from airflow_streamstate.connectors.registry import SOURCES
from airflow_streamstate.connectors.source import Source
from airflow_streamstate.driver.attempt import query_sources
from airflow_streamstate.driver.attempt.ports import QuerySource, StartableQuery, WriterFacts
from airflow_streamstate.driver.attempt.reports import Reporter
from airflow_streamstate.protocol.commands import SnapshotRequest, StopRequest
from airflow_streamstate.protocol.events import Failed, Noted, QueryStarted, SnapshotReady, Stopped
from support.fake_clock import FakeClock
from support.simulated_connector import OpenSimulated, SimulatedConnector, SimulatedDoor, install_connector
from support.simulated_driver import SimulatedStream, make_plan, waiting_script
from support.simulated_sources import SimulatedSource


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, more: Mapping[str, str] | None = None) -> None:
    install_connector(folder)
    for name, value in (more or {}).items():
        metadata = folder / f"{name}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(f"[{SOURCES}]\n{name} = {value}\n")
    monkeypatch.syspath_prepend(str(folder))
    importlib.invalidate_caches()


def stopped_run(stream: SimulatedStream) -> QueryStarted:
    """Run a query that shows its sources until a stop."""
    stream.order_at(3.0, StopRequest)
    assert stream.run(waiting_script(make_plan(shows_sources=True))) == 0
    return stream.events_of(QueryStarted)[0]


def test_a_broken_connector_is_told_and_the_stream_runs(
    stream: SimulatedStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One note; the other connectors are used, and identity and marks are recorded with the offsets."""
    install(tmp_path, monkeypatch, {"brokenone": "no_such_module:Connector"})
    started = stopped_run(stream)
    told = [event.text for event in stream.events_of(Noted) if "brokenone" in event.text]
    assert len(told) == 1
    assert "cannot be used: ModuleNotFoundError" in told[0]
    snapshot_id = stream.events_of(Stopped)[0].snapshot_id
    (identity,) = stream.control.need_manifest(snapshot_id).queries["counts"].identities
    assert (identity.adapter, identity.what, identity.marks) == (
        "simulated",
        "simulated Simulated[flights]",
        {"made": "1"},
    )
    assert started.identities[0].adapter == "simulated"


def test_without_an_connector_nothing_is_known_and_nothing_breaks(stream: SimulatedStream) -> None:
    """A source without a connector runs too."""
    assert stopped_run(stream).identities[0] == query_sources.UNKNOWN


def test_what_an_connector_says_in_other_types_spoils_no_object(
    stream: SimulatedStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers as marks, a float as a lag, a path as a remark: the records stay readable."""
    install(tmp_path, monkeypatch, {"looseone": "loose_connector:Loose"})
    (tmp_path / "loose_connector.py").write_text(
        "from pathlib import Path\n"
        "from airflow_streamstate.connectors.source import Lag\n"
        "from support.simulated_connector import OpenSimulated, SimulatedConnector\n"
        "class Open(OpenSimulated):\n"
        "    def marks(self): return {'version': 5}\n"
        "    def lag(self, offset): return Lag(3.0)\n"
        "class Loose(SimulatedConnector):\n"
        "    name = 'loose'\n"
        "    def open(self, source, spark):\n"
        "        return Open(source.options['name'], spark.sources[source.options['name']])\n"
        "    def remarks(self, source): return (Path('a'),)\n"
        "    def explain(self, failure): return Path('b')\n"
    )
    plan = make_plan(shows_sources=True, fails_at={6})
    stream.order_at(3.0, SnapshotRequest)
    assert stream.run(waiting_script(plan)) == 1
    (started,) = stream.events_of(QueryStarted)
    assert started.identities[0].marks == {"version": "5"}
    assert started.remarks == ("a",)
    assert stream.events_of(Failed)[0].explanation == "b"
    (ready,) = stream.events_of(SnapshotReady)
    assert stream.control.need_manifest(ready.snapshot_id).queries["counts"].identities == started.identities
    beat = stream.control.heartbeat("d-0001")
    assert beat is not None
    assert beat.queries["counts"].rows_behind == 3


def test_an_identity_that_is_no_text_is_none(
    stream: SimulatedStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The book asks the next connector."""
    install(tmp_path, monkeypatch, {"numberingone": "numbering_connector:Numbering"})
    (tmp_path / "numbering_connector.py").write_text(
        "from support.simulated_connector import SimulatedConnector\n"
        "class Numbering(SimulatedConnector):\n"
        "    def identify(self, source): return 7\n"
    )
    assert stopped_run(stream).identities[0].what == "simulated Simulated[flights]"


SECRET = "hunter2  woods"


def test_what_an_connector_raises_is_cut_after_its_secrets_are_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redaction does not recognise half a secret, or one with its whitespace collapsed."""
    install(tmp_path, monkeypatch, {"longone": "long_connector:Long", "brokenone": "broken_connector:Broken"})
    (tmp_path / "broken_connector.py").write_text(f"raise RuntimeError('x' * 190 + {SECRET!r})\n")
    (tmp_path / "long_connector.py").write_text(
        "from support.simulated_connector import SimulatedConnector\n"
        "class Long(SimulatedConnector):\n"
        f"    def open(self, source, spark): raise RuntimeError('x' * 283 + {SECRET!r})\n"
        f"    def explain(self, failure): raise RuntimeError('x' * 283 + {SECRET!r})\n"
        f"    def remarks(self, source): raise RuntimeError('x' * 283 + {SECRET!r})\n"
    )
    stream, plan = SimulatedStream(), make_plan(shows_sources=True, fails_at={3})
    stream.deploy(conf={"spark.their.password": SECRET})
    assert stream.run(waiting_script(plan)) == 1
    told = [event.text for event in stream.events_of(Noted) if "xxx" in event.text]
    assert len(told) >= 3
    assert [text for text in told if "hunter2" in text or "woods" in text or len(text) > 500] == []
    assert all("***" in text for text in told)


class Restarting(OpenSimulated):
    """Answers after the script has started its query again."""

    restart: Callable[[], object] | None = None

    def marks(self) -> Mapping[str, str]:
        again, Restarting.restart = Restarting.restart, None
        if again is not None:
            again()
        return super().marks()


class RestartingConnector(SimulatedConnector):
    """Opens them."""

    def open(self, source: Source, spark: SimulatedDoor) -> OpenSimulated:
        return Restarting(source.options["name"], spark.sources[source.options["name"]])


def startable_of(source: SimulatedSource, count: int) -> StartableQuery:
    planned = Source("simulated", {"name": source.description})
    sources = tuple(QuerySource(planned, number) for number in range(count))
    facts = WriterFacts("memory", "default", "append", (), stateful=False, sources=sources)
    return cast(StartableQuery, SimpleNamespace(facts=facts, door=SimulatedDoor({source.description: source})))


def test_an_answer_that_comes_after_another_start_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It proves nothing about the new run: an old offset would count as one of the new source. And the answers of
    other sources than those asked are not taken."""
    install(tmp_path, monkeypatch, {"restartingone": f"{__name__}:RestartingConnector"})
    book = query_sources.SourceBook(
        Reporter(SimulatedStream().control.journal("d-0001"), 1, FakeClock(), lambda _line: None)
    )
    source = SimulatedSource()
    book.look_up("counts", startable_of(source, 2))
    Restarting.restart = lambda: book.look_up("counts", startable_of(source, 1))
    book.sight("counts", 5, lambda: 6)
    (identity,) = book.identities_at("counts", 30, lambda batch_id: (str(batch_id),))
    assert identity.marks == {}
