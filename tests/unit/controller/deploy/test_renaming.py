"""--rename-query: which query of a snapshot a script means (1a.12)."""

from __future__ import annotations

import pytest

from airflow_streamstate.controller.decide import Start
from airflow_streamstate.controller.deploy.start_plan import renaming
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.manifest import QuerySnapshot, SnapshotManifest
from airflow_streamstate.protocol.positions import QueryPosition
from airflow_streamstate.protocol.records import StartPlan
from support.fake_clock import START_AT

QUERIES = {name: QuerySnapshot(f"id-{name}", QueryPosition(3), ()) for name in ("a", "b")}
MANIFEST = SnapshotManifest("s", "stopped", "orders", "d-0001", 1, 1, START_AT, "agent", QUERIES, "w", "")
RESTORE = Start(StartPlan("restore", "s", "d-0001"))


@pytest.mark.parametrize(
    ("before", "asked", "found"),
    [
        ({}, {}, {}),
        ({}, {"a": "x"}, {"a": "x"}),
        ({"a": "x"}, {}, {"a": "x"}),
        ({"a": "x"}, {"a": "x"}, {"a": "x"}),
        ({"a": "x"}, {"x": "y"}, {"a": "y"}),
        ({"a": "x"}, {"a": "y"}, {"a": "y"}),
        ({"a": "x"}, {"x": "a"}, {}),
        ({"a": "x"}, {"a": "a"}, {}),
        ({"gone": "x"}, {}, {}),
        ({}, {"old": "a"}, {}),
    ],
)
def test_a_rename_goes_on(before: dict[str, str], asked: dict[str, str], found: dict[str, str]) -> None:
    """In later deployments, until another one takes its place; one that is done already is no error."""
    start = renaming(RESTORE, StartPlan("restore", rename_queries=before), asked, MANIFEST)
    assert start.plan.rename_queries == found


@pytest.mark.parametrize("asked", [{"c": "x"}, {"a": "b"}])
def test_a_rename_that_names_no_query_or_another_one_is_refused(asked: dict[str, str]) -> None:
    """It would start with nothing, or with another query's state."""
    with pytest.raises(InvalidRequestError):
        renaming(RESTORE, None, asked, MANIFEST)


def test_a_start_with_nothing_has_nothing_to_rename() -> None:
    """``--start fresh``."""
    fresh = Start(StartPlan("fresh"))
    assert renaming(fresh, None, {"a": "x"}, None) == fresh
