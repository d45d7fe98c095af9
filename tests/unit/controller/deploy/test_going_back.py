"""Going back to the start of a deployment: which batches it has used since then (Law 14)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_streamstate.controller.deploy.start_plan import (
    UsedError,
    begun_batches,
    committed_batches,
    refuse_used,
    used_queries,
)
from airflow_streamstate.protocol.manifest import QuerySnapshot, SnapshotManifest
from airflow_streamstate.protocol.positions import QueryPosition
from support.examples import example
from support.sim_stage import Stage

BASE = example(SnapshotManifest)
assert isinstance(BASE, SnapshotManifest)
Standing = tuple[int | None, int | None]


def manifest(**queries: Standing) -> SnapshotManifest:
    """A snapshot with queries at these last committed and planned batches."""
    (one,) = BASE.queries.values()
    made: dict[str, QuerySnapshot] = {
        name: replace(one, position=QueryPosition(batch_id, planned_batch_id=planned))
        for name, (batch_id, planned) in queries.items()
    }
    return replace(BASE, queries=made)


@pytest.mark.parametrize(
    ("began", "ended", "used", "committed", "begun"),
    [
        ((3, None), (3, None), None, None, None),
        ((3, 4), (3, 4), None, None, None),  # planned by the version before, and not run since
        ((None, None), (None, None), None, None, None),
        ((3, None), (6, None), (4, 6), (4, 6), None),
        ((3, None), (6, 7), (4, 7), (4, 6), 7),
        ((3, None), (3, 4), (4, 4), None, 4),  # planned, not committed: the sink may hold it
        ((3, 4), (4, None), (4, 4), (4, 4), None),  # planned by the version before, and the output is this one's
        ((3, 4), (4, 5), (4, 5), (4, 4), 5),
        ((3, 4), (5, None), (4, 5), (4, 5), None),
        ((None, None), (0, None), (0, 0), (0, 0), None),
        ((None, None), (None, 0), (0, 0), None, 0),
        ((None, 0), (0, None), (0, 0), (0, 0), None),
        ((None, 0), (0, 1), (0, 1), (0, 0), 1),
    ],
)
def test_law_14_what_was_committed_or_planned_is_used(
    began: Standing,
    ended: Standing,
    used: tuple[int, int] | None,
    committed: tuple[int, int] | None,
    begun: int | None,
) -> None:
    """The output of a batch is that of the version that committed it; a successor runs a planned one again."""
    ends = manifest(q=began), manifest(q=ended)
    assert used_queries(*ends) == ({} if used is None else {"q": used})
    assert committed_batches(*ends) == ({} if committed is None else {"q": committed})
    assert begun_batches(*ends) == ({} if begun is None else {"q": begun})


def test_each_query_by_itself() -> None:
    """One that stood still is not among them, one that is new is from its first batch on, one that is gone is not."""
    began = manifest(still=(3, None), moved=(5, None), gone=(9, None))
    ended = manifest(still=(3, None), moved=(6, 7), new=(2, None), unused=(None, None))
    assert used_queries(began, ended) == {"moved": (6, 7), "new": (0, 2)}


def test_law_14_a_used_deployment_is_not_gone_back_from(stage: Stage) -> None:
    """By its own type, since there is another way then."""
    stage.deploy()
    seen = stage.seen()
    refuse_used(seen, manifest(q=(3, None)), manifest(q=(3, None)))
    with pytest.raises(UsedError, match=r'ids that the sink may hold.*batches=.*"q": \[4, 5\]'):
        refuse_used(seen, manifest(q=(3, None)), manifest(q=(5, None)))
