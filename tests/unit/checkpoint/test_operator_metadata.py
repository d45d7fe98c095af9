"""The metadata of operators that Spark 3.5 leaves out: whose they are, and what is refused."""

from __future__ import annotations

import json

import pytest

from airflow_streamstate.checkpoint.log import PARTITIONS, Checkpoint, OffsetEntry, format_offset_entry
from airflow_streamstate.checkpoint.state_files import write_operator_metadata
from airflow_streamstate.errors import DataError, UnsupportedCheckpointError
from support.checkpoints import memory_checkpoint


def framed(text: str) -> bytes:
    return len(text.encode()).to_bytes(2, "big") + text.encode()


def struct(*fields: str, kind: str = "string", mark: str = "") -> str:
    facts = {mark: True} if mark else {}
    listed = [{"name": name, "type": kind, "nullable": True, "metadata": facts} for name in fields]
    return json.dumps({"type": "struct", "fields": listed})


def schema(key: str, value: str, version: str = "v2") -> bytes:
    """As Spark writes it, of short texts."""
    return framed(version) + b"".join(b"\0\0\0\1" + framed(text) for text in (key, value))


def checkpoint_with(pinned: str | None, **schemas: bytes) -> Checkpoint:
    """At batch 0, with the state and the schema of each operator in its one store."""
    checkpoint = memory_checkpoint()
    conf = {} if pinned is None else {PARTITIONS: pinned}
    checkpoint.store.put(checkpoint.offset_key(0), format_offset_entry(OffsetEntry(0, 0, conf, ("{}",))))
    for name, body in schemas.items():
        operator_id = name.removeprefix("op")
        checkpoint.store.put(checkpoint.key(f"state/{operator_id}/0/_metadata/schema"), body)
        checkpoint.store.put(checkpoint.key(f"state/{operator_id}/0/1.zip"), b"")
    return checkpoint


@pytest.mark.parametrize(
    ("body", "name", "prefix"),
    [
        (schema(struct("k"), struct("count", "sum")), "stateStoreSave", 0),
        (schema(struct("k", "j", "start"), struct("w", "sum", mark="spark.sessionWindow")),
         "sessionWindowStateStoreSaveExec", 2),
        (schema(struct("k"), struct("__dummy__", kind="void")), "dedupe", 0),
        (schema(struct("k"), struct("expiresAtMicros")), "dedupeWithinWatermark", 0),
        (schema(struct("k"), struct("groupState")), "applyInPandasWithState", 0),
        (schema(struct("k"), struct("groupState", "timeoutTimestamp")), "applyInPandasWithState", 0),
        (schema(struct("key", kind="void"), struct("value")), "globalLimit", 0),
    ],
)  # fmt: skip
def test_an_operator_is_known_by_its_schema(body: bytes, name: str, prefix: int) -> None:
    """``test_rewriter`` holds each of them against what Spark itself writes."""
    checkpoint = checkpoint_with("7", op0=body)
    assert write_operator_metadata(checkpoint, 0) == ("state/0/_metadata/metadata",)
    stored = checkpoint.store.get(checkpoint.key("state/0/_metadata/metadata"))
    assert stored is not None
    found = json.loads(stored.body.partition(b"\n")[2])
    assert found["operatorInfo"] == {"operatorId": 0, "operatorName": name}
    assert found["stateStoreInfo"] == [{"storeName": "default", "numColsPrefixKey": prefix, "numPartitions": 7}]


SUMS = schema(struct("k"), struct("sum"))


def test_a_schema_without_state_of_the_batch_is_of_no_operator() -> None:
    """It belongs to a script of before, or to a batch that was planned."""
    checkpoint = checkpoint_with("2", op0=SUMS, op1=SUMS)
    checkpoint.store.delete(checkpoint.key("state/1/0/1.zip"))
    assert write_operator_metadata(checkpoint, 0) == ("state/0/_metadata/metadata",)


def test_state_of_which_it_is_not_certain_whose_it_is_is_refused() -> None:
    """Without a schema, in stores that no operator has, or with a schema of Spark 3.1 and older: it would be lost."""
    without = checkpoint_with("2", op0=SUMS)
    without.store.put(without.key("state/1/0/1.zip"), b"")
    odd = checkpoint_with("2", op0=SUMS)
    odd.store.put(odd.key("state/0/0/left/_metadata/schema"), SUMS)
    for checkpoint in (without, odd, checkpoint_with("2", op0=schema("{}", "{}", "v1"))):
        with pytest.raises(UnsupportedCheckpointError, match="recorded no operator for this state") as refused:
            write_operator_metadata(checkpoint, 0)
        assert refused.value.next_step


@pytest.mark.parametrize("pinned", [None, "", "many", "1000001"])
def test_the_number_of_partitions_is_never_guessed(pinned: str | None) -> None:
    """A lost or damaged pin is damage."""
    with pytest.raises(DataError, match="pins no number of partitions"):
        write_operator_metadata(checkpoint_with(pinned, op0=SUMS), 0)


@pytest.mark.parametrize("body", [b"", b"\0", SUMS[:-3], schema("[]", "[]"), schema("{", "}"), SUMS + b"x"])
def test_a_damaged_schema_is_named(body: bytes) -> None:
    """By its key."""
    with pytest.raises(DataError, match="schema of a state store is damaged") as refused:
        write_operator_metadata(checkpoint_with("2", op0=body), 0)
    assert str(refused.value.context["key"]).endswith("state/0/0/_metadata/schema")
