"""The position of a query."""

from __future__ import annotations

from airflow_streamstate.protocol.positions import QueryPosition


def test_a_query_that_never_committed_has_a_position() -> None:
    """Position none: nothing is known of it, and nothing is guessed (Law 5)."""
    position = QueryPosition(batch_id=None)
    assert (position.end_offsets, position.planned_batch_id, position.watermark_at) == ((), None, None)
    assert (position.state_rows_left, position.state_left, position.rows_written_early) == (None, (), None)
