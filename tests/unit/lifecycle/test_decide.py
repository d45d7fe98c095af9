"""The decisions alone: pure, and the same for the same observation."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_streamstate.errors import ConflictError, IncompatibleUpgradeError, InvalidRequestError
from airflow_streamstate.lifecycle.decide import (
    INTENT_SECONDS,
    Became,
    Begin,
    Refused,
    Start,
    decide_expected_snapshot,
    decide_request,
    decide_start,
)
from airflow_streamstate.lifecycle.requesting.requests import DeployRequest
from airflow_streamstate.protocol.ids import SnapshotKind, deployment_id_for
from airflow_streamstate.protocol.manifest import QuerySnapshot, SnapshotManifest
from airflow_streamstate.protocol.positions import QueryPosition
from airflow_streamstate.protocol.records import RequestRecord
from airflow_streamstate.protocol.register import Intent, StreamRegister
from support.fake_clock import START_AT
from support.sim_stage import Stage


def register(token: int, intent: Intent | None = None) -> StreamRegister:
    """The register of a stream whose current deployment has this token."""
    current = deployment_id_for(token) if token else None
    return StreamRegister("orders", token, current, 1 if token else 0, "run", intent, "w", START_AT, "tests")


def record(token: int) -> RequestRecord:
    """A request that was to become the deployment of this token."""
    return RequestRecord("r-1", "orders", "deploy", "0" * 64, deployment_id_for(token), "w", START_AT)


def manifest(kind: SnapshotKind = "stopped", **queries: QuerySnapshot) -> SnapshotManifest:
    """A snapshot of these queries."""
    return SnapshotManifest(f"d-0001-{kind}-000001", kind, "orders", "d-0001", 1, 1, START_AT, "agent", queries, "w")


def query(batch_id: int | None, *, drained: bool = False, **position: object) -> QuerySnapshot:
    """A query at this batch."""
    return QuerySnapshot("id", QueryPosition(batch_id, **position), (), drained=drained)  # type: ignore[arg-type]


def request(**changes: object) -> DeployRequest:
    """A request."""
    return DeployRequest(stream_id="orders", application=Path("job.py"), **changes)  # type: ignore[arg-type]


def test_a_new_request_is_the_next_deployment() -> None:
    """Fencing tokens grow by every deployment. (Law 4)"""
    assert decide_request(None, None, "r-1", START_AT) == Begin("d-0001", 1, is_new=True)
    assert decide_request(None, register(4), "r-1", START_AT) == Begin("d-0005", 5, is_new=True)


@given(token=st.integers(1, 50), recorded=st.integers(1, 50))
def test_a_recorded_request_is_never_another_deployment(token: int, recorded: int) -> None:
    """A recorded request goes on as what it was recorded to be, has become it, or is refused. (Law 2)"""
    decision = decide_request(record(recorded), register(token), "r-1", START_AT)
    if recorded == token:
        assert decision == Became(deployment_id_for(recorded))
    elif recorded > token:
        assert decision == Begin(deployment_id_for(recorded), recorded, is_new=False)
    else:
        assert isinstance(decision, Refused)
        assert decision.error.context["current_deployment_id"] == deployment_id_for(token)


@given(age_seconds=st.floats(0, 3 * INTENT_SECONDS))
def test_an_intent_is_respected_while_it_is_young(age_seconds: float) -> None:
    """A young intent of another refuses; an old one is passed over, and its deployment id left alone. (1a.8)"""
    intent = Intent("r-other", "d-0005", START_AT, "somebody")
    decision = decide_request(None, register(4, intent), "r-1", START_AT + timedelta(seconds=age_seconds))
    if age_seconds < INTENT_SECONDS:
        assert isinstance(decision, Refused)
    else:
        assert decision == Begin("d-0006", 6, is_new=True)
    own = decide_request(record(5), register(4, Intent("r-1", "d-0005", START_AT, "me")), "r-1", START_AT)
    assert own == Begin("d-0005", 5, is_new=False)


@pytest.mark.parametrize(
    ("kind", "queries", "mode"),
    [
        ("stopped", {"a": query(3)}, "restore"),
        ("drained", {"a": query(3, drained=True, state_rows_left=0)}, "seed"),
        ("drained", {"a": query(3, drained=True, state_rows_left=0), "b": query(5)}, "seed"),
        ("stopped", {"a": query(3, drained=True, state_rows_left=0), "b": query(5)}, "restore"),
        ("stopped", {"a": query(3, drained=True, state_rows_left=0), "b": query(None)}, "seed"),
        ("stopped", {"a": query(None, planned_batch_id=0)}, "restore"),
        ("stopped", {}, "fresh"),
    ],
)
def test_what_the_snapshot_is_decides_the_start(kind: SnapshotKind, queries: dict, mode: str) -> None:
    """With state: restore. Drained: seed. No query ever: where the options say. (1a.9)"""
    decision = decide_start(request(), "d-0001", manifest(kind, **queries))
    assert isinstance(decision, Start)
    assert decision.plan.mode == mode
    assert decision.plan.snapshot_id == (None if mode == "fresh" else f"d-0001-{kind}-000001")


@given(
    start=st.sampled_from([None, "restore", "seed", "fresh"]),
    kind=st.sampled_from(["stopped", "drained"]),
    discard=st.booleans(),
    rows=st.sampled_from([None, 0, 7]),
)
def test_nothing_starts_empty_or_loses_state_unless_it_was_named(
    start: str | None, kind: SnapshotKind, discard: bool, rows: int | None
) -> None:
    """Fresh only by name; a mode that contradicts the snapshot, or state that would be dropped, is refused.
    (Laws 5, 11 and 16)"""
    drained = kind == "drained"
    found = decide_start(
        request(start=start, discard_state=discard),
        "d-0001",
        manifest(kind, a=query(3, drained=drained, state_rows_left=rows)),
    )
    if start == "fresh":
        assert isinstance(found, Start)
        assert found.plan.mode == "fresh"
        return
    contradicts = start is not None and start != ("seed" if drained else "restore")
    drops = drained and rows != 0 and not discard
    if contradicts or drops:
        assert isinstance(found, Refused)
        assert isinstance(found.error, IncompatibleUpgradeError)
    else:
        assert isinstance(found, Start)
        assert found.plan.mode == ("seed" if drained else "restore")


def test_a_query_that_a_drain_left_unflushed_is_named() -> None:
    """A query that was not started when the others drained keeps its state, and that is said. (Law 16)"""
    decision = decide_start(
        request(), "d-0001", manifest("drained", a=query(3, drained=True, state_rows_left=0), b=query(5))
    )
    assert isinstance(decision, Start)
    assert any("query b was not flushed" in note for note in decision.notes)


@pytest.mark.parametrize("start", ["seed", "restore"])
def test_what_is_asked_for_by_name_needs_a_position(start: str) -> None:
    """After a deployment that never started a query there is none; nobody gets another start instead. (Law 5)"""
    decision = decide_start(request(start=start), "d-0001", manifest())
    assert isinstance(decision, Refused)
    assert isinstance(decision.error, InvalidRequestError)


def test_a_snapshot_that_is_named_is_a_check() -> None:
    """A snapshot in a request is what is expected, never a choice. (Law 14; 1a.9)"""
    assert decide_expected_snapshot(request(snapshot_id="s-1"), "d-0001", "s-1") is None
    assert decide_expected_snapshot(request(), "d-0001", "s-1") is None
    refused = decide_expected_snapshot(request(snapshot_id="s-0"), "d-0001", "s-1")
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, ConflictError)


def test_a_decision_leaves_no_trace(stage: Stage) -> None:
    """Deciding twice on one observation gives the same, and writes nothing. (Law 1)"""
    from airflow_streamstate.lifecycle.decide import decide_predecessor, decide_resume

    stage.deploy()
    stage.stopped()
    seen = stage.seen()
    before = {info.key: info.size_bytes for info in stage.store.list_objects("")}
    assert decide_predecessor(seen, request(), None) == decide_predecessor(seen, request(), None)
    assert decide_resume(seen, "r", assume_dead=False, has_drain=False) == decide_resume(
        seen, "r", assume_dead=False, has_drain=False
    )
    assert {info.key: info.size_bytes for info in stage.store.list_objects("")} == before


def test_state_that_nobody_counted_is_not_taken_for_none() -> None:
    """A drained query whose state nobody counted refuses the seed, unless it is dropped by name. (Law 16)"""
    kept = manifest("stopped", a=query(3, drained=True), b=query(5))
    found = decide_start(request(), "d-0001", kept)
    assert isinstance(found, Refused)
    assert isinstance(found.error, IncompatibleUpgradeError)
    assert "nobody counted" in str(found.error)
    assert isinstance(decide_start(request(discard_state=True), "d-0001", kept), Start)
