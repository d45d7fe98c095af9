"""One digest over what a snapshot holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_streamstate.protocol.manifest import FileEntry, QuerySnapshot
from airflow_streamstate.protocol.positions import QueryPosition
from airflow_streamstate.snapshot.content import content_digest

FILE = FileEntry("offsets/3", 10, "0a0b", "crc32:1")
POSITION = QueryPosition(3, ('{"logOffset":3}',))
QUERY = QuerySnapshot("id", POSITION, (FILE, FileEntry("state/0/0/4.delta", 20)))
DIGEST = content_digest({"counts": QUERY})


@pytest.mark.parametrize(
    "other",
    [
        replace(QUERY, files=QUERY.files[:1]),
        replace(QUERY, files=(replace(FILE, path="offsets/4"), *QUERY.files[1:])),
        replace(QUERY, files=(replace(FILE, size_bytes=11), *QUERY.files[1:])),
        replace(QUERY, files=(replace(FILE, spark_crc32="ff"), *QUERY.files[1:])),
        replace(QUERY, files=(replace(FILE, checksum="crc32:2"), *QUERY.files[1:])),
        replace(QUERY, position=replace(POSITION, batch_id=4)),
        replace(QUERY, position=replace(POSITION, planned_batch_id=4)),
        replace(QUERY, position=replace(POSITION, end_offsets=("5",))),
    ],
)
def test_what_holds_something_else_has_another_digest(other: QuerySnapshot) -> None:
    """Positions and items: paths, sizes, checksums; and the names of the queries."""
    assert content_digest({"counts": other}) != DIGEST
    assert content_digest({"counts": QUERY, "rows": other}) != DIGEST
    assert content_digest({"rows": QUERY}) != DIGEST


def test_what_differs_each_time_is_not_in_it() -> None:
    """Rows that were counted meanwhile, an entity tag of one key, the order in which queries were looked at."""
    counted = replace(QUERY, position=replace(POSITION, state_rows_left=7, rows_dropped=1))
    assert content_digest({"counts": counted}) == DIGEST
    tags = [content_digest({"q": replace(QUERY, files=(replace(FILE, checksum=f"etag:{one}"),))}) for one in "ab"]
    assert tags[0] == tags[1]
    assert content_digest({"a": QUERY, "b": counted}) == content_digest({"b": counted, "a": QUERY})
