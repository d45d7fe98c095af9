"""Requests to rewrite state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_streamstate.checkpoint.guards import PROVIDER, ROCKSDB_PROVIDER
from airflow_streamstate.controller.request.patch import conf_of
from airflow_streamstate.controller.request.requests import change_request
from airflow_streamstate.controller.upgrade.upgrades import UpgradeRequest
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.records import StateRewrite
from airflow_streamstate.protocol.terms.order import UpgradeTerms

MIGRATION = """
from airflow_streamstate.migration import migrate

@migrate(query="sums", operator="aggregate")
def same(key, state):
    return state
"""


@pytest.mark.parametrize(
    "change",
    [
        {"partitions": 0},
        {"partitions": -3},
        {"partitions": 1_000_000},
        {"state_store": "leveldb"},
        {"checkpoint_format": 3},
    ],
)
def test_what_no_state_can_be_written_in_is_refused(change: dict[str, Any]) -> None:
    """Before anything is launched."""
    with pytest.raises(InvalidRequestError, match=str(next(iter(change.values())))):
        change_request("orders", **change)


def test_a_change_names_its_rewrite_and_keeps_to_its_settings(tmp_path: Path) -> None:
    """So that a later seed has them, too; a change without a rewrite asks for none."""
    path = tmp_path / "m.py"
    path.write_text(MIGRATION)
    change = change_request("orders", partitions=5, state_store="rocksdb", checkpoint_format=2, migration=path)
    rewrite = change.rewrite
    assert rewrite is not None
    assert (rewrite.partitions, rewrite.state_store, rewrite.checkpoint_format) == (5, "rocksdb", 2)
    assert rewrite.migration is not None
    assert rewrite.migration.name == "m.py"
    assert conf_of(rewrite) == {
        "spark.sql.shuffle.partitions": "5",
        PROVIDER: ROCKSDB_PROVIDER,
        "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    }
    digest = change.digest
    path.write_text(MIGRATION + "# another\n")
    again = change_request("orders", partitions=5, state_store="rocksdb", checkpoint_format=2, migration=path)
    assert again.digest != digest
    plain = change_request("orders")
    assert plain.rewrite is None
    assert conf_of(None) == {}
    assert change_request("orders", auto_migrate=True).rewrite == StateRewrite(auto_migrate=True)


def test_a_migration_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """Missing, a folder, or no migration at all."""
    empty = tmp_path / "empty.py"
    empty.write_text("")
    for path in (tmp_path / "missing.py", tmp_path, empty):
        with pytest.raises(InvalidRequestError):
            change_request("orders", migration=path)


@pytest.mark.parametrize("more", [{"mode": "drain"}, {"mode": "fresh"}, {"allow_drain": True}, {"rehearse": False}])
def test_state_is_written_anew_only_in_a_rehearsed_restore(more: dict[str, Any]) -> None:
    """A drain leaves no state to write."""
    with pytest.raises(InvalidRequestError, match="rewritten"):
        UpgradeRequest(change_request("orders", partitions=5), UpgradeTerms(**more))
