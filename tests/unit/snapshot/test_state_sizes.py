from __future__ import annotations

import pytest

from airflow_streamstate.errors import DataError
from airflow_streamstate.protocol.manifest import FileEntry
from airflow_streamstate.snapshot.state_tables import Skew, bytes_by_partition, operators_in, skew_of


@pytest.mark.parametrize(
    ("rows", "skew"),
    [
        ([1, 1, 10], Skew(10, 1.0, 2, 10.0)),
        ([4, 2], Skew(4, 3.0, 0, 1.33)),
        ([0, 0, 5], Skew(5, 0.0, 2, None)),
        ([0, 0], Skew(0, 0.0, 0, None)),
        ([], None),
    ],
)
def test_skew_is_the_fullest_by_the_median(rows: list[int], skew: Skew | None) -> None:
    """Where most partitions are empty there is no ratio to report."""
    assert skew_of(rows) == skew


def test_bytes_go_to_the_partition_in_whose_folder_they_lie() -> None:
    """Files of all its stores; what describes an operator is in no partition, logs are no state."""
    files = [
        FileEntry("state/0/0/1.delta", 10), FileEntry("state/0/0/left/2.zip", 5), FileEntry("state/0/11/1.delta", 7),
        FileEntry("state/0/_metadata/metadata", 99), FileEntry("state/3/_metadata/v2/0", 1), FileEntry("offsets/0", 2),
    ]  # fmt: skip
    assert bytes_by_partition(files) == {0: {0: 15, 11: 7}}
    assert operators_in(files) == {0, 3}


@pytest.mark.parametrize("partition", ["100000", "9" * 5000])
def test_a_partition_of_any_number_is_refused(partition: str) -> None:
    """A report has a place for each partition up to the last one."""
    with pytest.raises(DataError, match="a partition that no operator has"):
        bytes_by_partition([FileEntry(f"state/0/{partition}/1.delta", 10)])
