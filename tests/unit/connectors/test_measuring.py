"""The amount of input between two positions."""

from __future__ import annotations

import json

import pytest

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.connectors.files import FileSource
from airflow_streamstate.connectors.kafka import KafkaSource
from airflow_streamstate.connectors.registry import between, moves_between
from airflow_streamstate.connectors.source import Lag
from airflow_streamstate.protocol.positions import SourceIdentity, SourceMove
from airflow_streamstate.store.memory import MemoryStore


@pytest.fixture
def checkpoint() -> Checkpoint:
    """Three looks into a folder, each of which found files."""
    found = Checkpoint(MemoryStore(), "cp")
    for number, names in enumerate((["a", "b"], ["c"], ["d", "e"])):
        lines = [
            json.dumps({"path": f"file:///in/{name}", "timestamp": 1, "batchId": number}, separators=(",", ":"))
            for name in names
        ]
        found.store.put(found.key(f"sources/0/{number}"), "\n".join(["v1", *lines]).encode())
    return found


def test_what_lies_between_two_offsets_is_counted_without_asking(checkpoint: Checkpoint) -> None:
    """Rows by the offsets themselves, files by the book; nothing where the second is behind the first."""
    book = checkpoint.store, checkpoint.key("sources/0")
    assert between(FileSource(), book, '{"logOffset":0}', '{"logOffset":2}') == Lag(3, "files")
    assert between(FileSource(), book, "-", '{"logOffset":2}') == Lag(5, "files")
    assert between(FileSource(), book, '{"logOffset":2}', '{"logOffset":0}') == Lag(0, "files")
    assert between(FileSource(), book, '{"logOffset":0}', '{"logOffset":9}') is None  # no such look was ever made
    assert between(KafkaSource(), book, '{"t":{"0":3,"1":9}}', '{"t":{"0":5,"1":8}}') == Lag(2)
    assert between(KafkaSource(), book, "nonsense", '{"t":{"0":5}}') is None
    assert between(KafkaSource(), book, "-", '{"t":{"0":5}}') is None  # its options decide where it started
    assert between(KafkaSource(), book, "-", "-") == Lag(0)
    assert between(None, book, "1", "2") is None


def test_a_move_says_what_is_passed_over_and_what_is_read_again(checkpoint: Checkpoint) -> None:
    """Of each source in its own unit; a partition ahead does not make up for one behind."""
    identities = [SourceIdentity("file", "file /in"), SourceIdentity("kafka", "kafka subscribe t", 1)]
    stood, begins = ['{"logOffset":2}', '{"t":{"0":3,"1":9}}'], ['{"logOffset":0}', '{"t":{"0":5,"1":8}}']
    assert moves_between(checkpoint, identities, (), stood, begins) == (
        SourceMove("file /in", stood[0], begins[0], 0, 3, "files"),
        SourceMove("kafka subscribe t", stood[1], begins[1], 2, 1, "rows"),
    )
    assert moves_between(checkpoint, [], (), ["1"], ["2"]) == (SourceMove("source 0", "1", "2"),)
