"""State that another Spark alongside the driver rewrites, and what that needs of a checkpoint of Spark 3.5."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from airflow_streamstate.checkpoint.log import Checkpoint, delete_with_crc
from airflow_streamstate.checkpoint.state_files import operator_stores, write_operator_metadata
from airflow_streamstate.errors import IncompatibleUpgradeError, InvalidRequestError, UnsupportedCheckpointError
from airflow_streamstate.store.transfer import keys_below
from support.drivers import wait_until
from support.rewrite_lab import RewriteLab, rewriting_in
from support.rewrite_table import MIGRATED, OPERATORS, ROWS, Operator, Row

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
]
IN_FULL = os.environ.get("STREAMSTATE_TRUTH") == "full"
OTHER = {"rewriter_spark": sys.prefix}
"""The Spark of the tests, as if the driver's were an older one."""
SUMS = next(row for row in ROWS if row.name == "aggregate, text keys: 3 to 5 partitions")
JOINED = next(row for row in ROWS if row.name == "left outer join: HDFS-backed to RocksDB, 3 to 5")
REMOVED = tuple(row for row in MIGRATED if row.operator == "aggregate, text keys" and "HDFS" not in row.name)


@pytest.fixture(scope="module")
def lab(shared_spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RewriteLab]:
    """One warm session, and the one process alongside it, which is ended."""
    from airflow_streamstate.driver.spark import rewriter

    with rewriting_in(shared_spark, tmp_path_factory.mktemp("rewriter")) as found:
        yield found
    for process in rewriter._kept.values():
        process.end()
    rewriter._kept.clear()


@pytest.fixture
def other(lab: RewriteLab, monkeypatch: pytest.MonkeyPatch) -> RewriteLab:
    """The lab, whose own Spark cannot rewrite state."""
    from airflow_streamstate.driver.spark import state_rewriting

    monkeypatch.setattr(state_rewriting, "why_no_rewrite", lambda _: "it is an older one")
    return lab


def of(row: Row, **asks: object) -> Row:
    return replace(row, asks={**row.asks, **OTHER, **asks})


# the metadata of operators, which Spark 3.5 does not write


OF_EACH_KIND = (
    *("aggregate, nested keys", "session window", "dropDuplicates", "dropDuplicatesWithinWatermark", "limit"),
    *("left outer join", "applyInPandasWithState", "applyInPandasWithState, timeouts in event time"),
    *("one aggregate of everything", "two aggregates, one above the other"),
)
TRIED = tuple(
    operator
    for operator in OPERATORS
    if "transformWithState" not in operator.name and (IN_FULL or operator.name in OF_EACH_KIND)
)


@pytest.mark.parametrize("operator", TRIED, ids=lambda operator: operator.name)
def test_the_metadata_of_operators_is_that_of_spark(lab: RewriteLab, operator: Operator) -> None:
    """What is written where there is none, as by Spark 3.5, is to the byte what this Spark wrote there."""
    script = operator.script(operator.stores[0], 3)
    checkpoint = lab.fork(script)
    batch_id = checkpoint.position().batch_id
    assert batch_id is not None
    taken = metadata_of(checkpoint)
    assert len(taken) == len(operator_stores(checkpoint, batch_id, paths_below(checkpoint))) > 0
    for path in taken:
        delete_with_crc(checkpoint.store, checkpoint.key(path))
    assert write_operator_metadata(checkpoint, batch_id) == tuple(taken)
    assert metadata_of(checkpoint) == taken
    assert write_operator_metadata(checkpoint, batch_id) == ()


def paths_below(checkpoint: Checkpoint) -> set[str]:
    prefix = checkpoint.key("state/")
    return {key[len(prefix) :] for key in keys_below(checkpoint.store, prefix)}


def metadata_of(checkpoint: Checkpoint) -> Mapping[str, object]:
    """By path the metadata of each operator, in order."""
    found = {}
    for path in sorted(paths_below(checkpoint)):
        if path.endswith("/_metadata/metadata"):
            stored = checkpoint.store.get(checkpoint.key(f"state/{path}"))
            assert stored is not None
            found[f"state/{path}"] = json.loads(stored.body.partition(b"\n")[2])
    return found


# the process alongside the driver


@pytest.mark.parametrize("row", [JOINED, *REMOVED], ids=lambda row: row.name)
def test_state_that_another_spark_rewrites_is_the_same(other: RewriteLab, row: Row) -> None:
    """With the same rows, in the same partitions, through the same functions, and the same words about it."""
    checkpoint = other.rewritten(of(row))
    told = other.last.tables
    assert other.state_of(checkpoint) == other.state_of(other.begun(row.new))
    assert all(table.is_equal for table in told if not table.is_migrated)
    assert all(table.samples for table in told if table.is_migrated)


def test_its_errors_are_those_of_the_driver(other: RewriteLab) -> None:
    """One sentence each: a migration that fails, a path without a Spark, and no path at all."""
    wrong = of(replace(REMOVED[0], migration=REMOVED[0].migration.replace("return", "1 / 0; return")))
    with pytest.raises(IncompatibleUpgradeError, match="the migration raised ZeroDivisionError at key") as refused:
        other.rewritten(wrong)
    assert refused.value.context["table"] == "0-stateStoreSave/rows"
    with pytest.raises(InvalidRequestError, match="there is no Spark at the path of the rewriter"):
        other.rewritten(of(SUMS, rewriter_spark="/nowhere"))
    with pytest.raises(UnsupportedCheckpointError, match=r"cannot rewrite state: it is an older one.*--rewriter-spark"):
        other.rewritten(SUMS)


def test_it_ends_with_the_driver_and_is_started_again(other: RewriteLab) -> None:
    """A process may be killed, or end between two orders; the end of its input ends it, whatever it does."""
    from airflow_streamstate.driver.spark import rewriter

    other.rewritten(of(SUMS))
    (process,) = rewriter._kept.values()
    os.kill(process._process.pid, signal.SIGKILL)
    wait_until(lambda: process._process.poll() is not None, lambda: "the end of a killed process", 60)
    other.rewritten(of(SUMS))
    (again,) = rewriter._kept.values()
    assert again is not process
    again._commands.close()
    wait_until(lambda: again._process.poll() is not None, lambda: "the end of the process", 60)
    assert again._process.returncode == rewriter._LOST_DRIVER_STATUS


def test_one_that_does_not_start_is_one_sentence(
    other: RewriteLab, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Spark without a Java that it can use, for one."""
    from airflow_streamstate.driver.spark import rewriter

    for process in rewriter._kept.values():
        process.end()
    rewriter._kept.clear()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(UnsupportedCheckpointError, match=r"has failed.*JAVA_GATEWAY_EXITED"):
        other.rewritten(of(SUMS))
    assert not rewriter._kept
