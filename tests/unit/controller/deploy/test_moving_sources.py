"""--move-source: which moves a start makes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_streamstate.controller.decide import Start
from airflow_streamstate.controller.deploy.start_plan import moving
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.manifest import QuerySnapshot, SnapshotManifest
from airflow_streamstate.protocol.positions import QueryPosition, SourceIdentity
from airflow_streamstate.protocol.records import StartPlan
from support.fake_clock import START_AT

RESTORE = Start(StartPlan("restore", "s", "d-0001"))


def snapshot(*places: str) -> SnapshotManifest:
    identities = (*(SourceIdentity("file", f"file {place}") for place in places), SourceIdentity("kafka", "kafka /a"))
    queries = {"q": QuerySnapshot("id", QueryPosition(3), (), identities=identities)}
    return SnapshotManifest("s", "stopped", "orders", "d-0001", 1, 1, START_AT, "agent", queries, "w", "")


@pytest.mark.parametrize(
    ("place", "asked", "found"),
    [
        ("/a/in", {}, {}),
        ("/a/in", {"/a": "/b"}, {"/a": "/b"}),
        ("/a/in", {"file:///a/in/": "/b/in"}, {"/a/in": "/b/in"}),
        ("/a/*/in", {"/a": "/b"}, {"/a": "/b"}),
        ("s3://lake/in", {"s3a://lake": "s3a://pond"}, {"s3://lake": "s3://pond"}),
        ("/b/in", {"/a": "/b"}, {}),
    ],
)
def test_a_move_is_made_once(place: str, asked: dict[str, str], found: dict[str, str]) -> None:
    """A file or a DAG states it for ever."""
    assert moving(RESTORE, asked, snapshot(place)).plan.move_sources == found


@pytest.mark.parametrize(
    ("places", "asked"),
    [(("/c/in",), {"/a": "/b"}), (("in",), {"/a": "/b"}), (("/a/in", "/b/in"), {"/a": "/b"}), (("/ab",), {"/a": "/b"})],
)
def test_a_move_of_no_source_or_onto_another_one_is_refused(places: tuple[str, ...], asked: dict[str, str]) -> None:
    """A rollback could not distinguish the two."""
    with pytest.raises(InvalidRequestError):
        moving(RESTORE, asked, snapshot(*places))


def test_a_start_with_nothing_has_nothing_to_move() -> None:
    """``--start fresh``; and a start elsewhere is not moved as well."""
    fresh = Start(StartPlan("fresh"))
    assert moving(fresh, {"/a": "/b"}, None) == fresh
    elsewhere = replace(RESTORE, plan=replace(RESTORE.plan, mode="seed", offsets={"q": ("-",)}))
    with pytest.raises(InvalidRequestError):
        moving(elsewhere, {"/a": "/b"}, snapshot("/a/in"))
