"""How much is left of each source."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.connectors.files import FileSource
from airflow_streamstate.connectors.source import Lag, Source, UnaskedSource, Untold
from airflow_streamstate.driver.agent import lag
from airflow_streamstate.driver.agent.lag import SourceLags
from airflow_streamstate.driver.attempt.ports import QuerySource
from airflow_streamstate.driver.attempt.query_sources import KnownSource, SourceBook
from airflow_streamstate.protocol.positions import SourceIdentity, SourceLag
from airflow_streamstate.store.memory import MemoryStore


class Folder(UnaskedSource):
    """Files that are there now."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.names = names

    def paths(self) -> frozenset[str]:
        return frozenset(f"file:///in/{name}" for name in self.names)

    def modified_at_ms(self) -> Mapping[str, int]:
        return {}


class Silent(UnaskedSource):
    """Knows that it is behind, and does not report how far."""

    def lag(self, offset: str) -> Lag | Untold | None:
        return None


@dataclass
class Book:
    """Sources that are open already."""

    known: list[KnownSource] = field(default_factory=list)

    def sources(self, query_name: str) -> tuple[KnownSource, ...]:
        return tuple(self.known)

    def ask(self, query_name: str, number: int, what: str, question: Any) -> Any:
        return question(self.known[number].opened)


def known(connector: Any, opened: Any, what: str, number: int = 0) -> KnownSource:
    name = "" if connector is None else connector.name
    source = QuerySource(Source("json", {"path": "/in"}), number)
    return KnownSource(source, connector, SourceIdentity(name, what, number), opened)


def measures(*sources: KnownSource) -> SourceLags:
    return SourceLags(cast(SourceBook, Book(list(sources))))


@pytest.fixture
def checkpoint() -> Checkpoint:
    """Three looks into a folder that each found files."""
    found = Checkpoint(MemoryStore(), "cp")
    for number, names in enumerate((["a", "b"], ["c"], ["d", "e"])):
        lines = [
            json.dumps({"path": f"file:///in/{name}", "timestamp": 1, "batchId": number}, separators=(",", ":"))
            for name in names
        ]
        found.store.put(found.key(f"sources/0/{number}"), "\n".join(["v1", *lines]).encode())
    return found


def test_files_that_stand_in_no_book_are_left(checkpoint: Checkpoint) -> None:
    """Also those that an offset does not cover yet; what is gone from the folder is nothing that is left."""
    folder = Folder("a", "c", "d", "new")
    files = measures(known(FileSource(), folder, "file /in"))
    assert files.behind("q", checkpoint, ['{"logOffset":0}']) == (SourceLag("file /in", 3, "files"),)
    assert files.behind("q", checkpoint, ['{"logOffset":2}']) == (SourceLag("file /in", 1, "files"),)
    checkpoint.store.delete(checkpoint.key("sources/0/1"))  # merged and removed: it was read already
    assert files.behind("q", checkpoint, ['{"logOffset":2}'])[0].behind == 1
    assert files.has_listings("q")


class Aging(Folder):
    """Leaves files out, by the time of the newest that was taken."""

    def unread(self, taken: Collection[str], newest_taken_ms: int) -> int:
        return 100 * len(taken) + newest_taken_ms


def test_a_source_that_leaves_files_out_counts_them_itself(checkpoint: Checkpoint) -> None:
    """From what was taken up to the offset, and the newest time in that."""
    files = measures(known(FileSource(), Aging("a"), "file /in"))
    assert files.behind("q", checkpoint, ['{"logOffset":0}'])[0].behind == 201
    assert files.behind("q", checkpoint, ['{"logOffset":2}'])[0].behind == 501


def test_a_query_that_began_anew_is_counted_anew(checkpoint: Checkpoint) -> None:
    """What was remembered of a later offset does not hide what an earlier one has not read."""
    files = measures(known(FileSource(), Folder("a", "d"), "file /in"))
    assert files.behind("q", checkpoint, ['{"logOffset":2}'])[0].behind == 0
    assert files.behind("q", checkpoint, ['{"logOffset":0}'])[0].behind == 1


def test_what_cannot_be_told_has_a_reason(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each source has its own; never a made-up number."""
    reason = UnaskedSource("it makes up rows")
    told = measures(
        known(None, None, ""),
        known(FileSource(), Silent(), "silent", 1),
        known(FileSource(), reason, "rate", 2),
        known(FileSource(), Folder(), "file /in", 3),
    ).behind("q", checkpoint, ["7", "8", "9", "-"])
    assert [(lag.source, lag.behind, lag.untold) for lag in told] == [
        ("source 0", None, lag.NOT_KNOWN),
        ("silent", None, lag.NO_ANSWER),
        ("rate", None, "it makes up rows"),
        ("file /in", None, lag.NOT_READ),
    ]
    monkeypatch.setattr(lag, "MAX_FILES", 2)
    many = measures(known(FileSource(), Folder("new"), "file /in"))
    assert many.behind("q", checkpoint, ['{"logOffset":2}'])[0].untold == lag.NOT_COUNTED


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        ({"numFilesOutstanding": "238", "numBytesOutstanding": "163"}, SourceLag("cloud", 238, "files")),
        ({"numBytesOutstanding": "163"}, SourceLag("cloud", 163, "bytes")),
        ({"numFilesOutstanding": "-1"}, SourceLag("cloud", untold="it does not say")),
    ],
)
def test_what_a_source_says_of_itself_in_its_metrics_counts_where_nobody_asks_it(
    checkpoint: Checkpoint, metrics: dict[str, str], expected: SourceLag
) -> None:
    """As the sources of Databricks do."""
    asked = measures(known(FileSource(), UnaskedSource("it does not say"), "cloud"))
    assert asked.behind("q", checkpoint, ["7"], [metrics]) == (expected,)
