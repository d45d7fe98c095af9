from __future__ import annotations

import pytest

from airflow_streamstate.controller.scratch.readings import feed_gap
from airflow_streamstate.protocol.manifest import FileEntry, QuerySnapshot
from airflow_streamstate.protocol.positions import QueryPosition

ID = "6dc406ac-e0da-4d47-ae59-212b2c68f47f"


def snapshot(batch_id: int | None, *names: str) -> QuerySnapshot:
    return QuerySnapshot("id", QueryPosition(batch_id), tuple(FileEntry(f"state/0/{name}", 1) for name in names))


@pytest.mark.parametrize(
    "names",
    [
        ("0/3.delta", "0/4.delta", "1/2.snapshot", "1/3.delta", "1/4.delta"),
        ("0/3.changelog", "0/4.changelog", "0/2.zip"),
        (f"0/3_{ID}.changelog", f"0/4_{ID}.changelog"),
        ("0/left/3.delta", "0/left/4.delta"),
    ],
)
def test_the_feed_is_there_where_every_batch_left_its_changes(names: tuple[str, ...]) -> None:
    """Batch 1 to batch 3 is versions 3 and 4, in every store of every partition."""
    assert feed_gap(snapshot(1), snapshot(3, *names), same_deployment=True) == ""


@pytest.mark.parametrize(
    ("names", "gap"),
    [
        (("0/4.zip",), "does not hold what batch 2 changed in state/0/0"),
        (("0/3.delta", "0/4.delta", "1/4.snapshot"), "batch 2 changed in state/0/1"),
        (("0/3.changelog",), "batch 3 changed in state/0/0"),
        ((), "there is no state"),
    ],
)
def test_where_changes_of_a_batch_are_missing_there_is_no_feed(names: tuple[str, ...], gap: str) -> None:
    """One partition is enough: half a feed would be wrong in silence."""
    assert gap in feed_gap(snapshot(1), snapshot(3, *names), same_deployment=True)


def test_the_feed_is_of_one_deployment_and_goes_forward() -> None:
    """After a rollback the older snapshot may be of batches that never happened to this state."""
    whole = snapshot(3, "0/2.delta", "0/3.delta", "0/4.delta")
    assert "one deployment" in feed_gap(snapshot(1), whole, same_deployment=False)
    assert "older batch" in feed_gap(snapshot(3), whole, same_deployment=True)
    assert feed_gap(snapshot(None), whole, same_deployment=True) != ""
