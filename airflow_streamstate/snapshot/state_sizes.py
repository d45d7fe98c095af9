"""The distribution of state: bytes of each operator and partition by the manifest, and the skew of rows."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from airflow_streamstate.checkpoint.state_files import MAX_PARTITIONS
from airflow_streamstate.errors import DataError
from airflow_streamstate.protocol.manifest import FileEntry
from airflow_streamstate.protocol.views import View

_PARTITION = re.compile(r"state/([0-9]+)/([0-9]+)/.+")
_MOST_DIGITS = 9
_OPERATOR = re.compile(r"state/([0-9]+)/.+")


@dataclass(frozen=True)
class Skew(View):
    """The skew of an operator's rows.

    Attributes:
        most: rows of the fullest partition.
        median: of all partitions.
        fullest: the first partition with ``most`` rows.
        ratio: ``most`` by ``median``; None where that is 0.
    """

    most: int
    median: float
    fullest: int
    ratio: float | None


def skew_of(rows: Sequence[int]) -> Skew | None:
    """The skew of an operator by the rows of each partition, also empty ones; None where it has none."""
    if not rows:
        return None
    most, median = max(rows), float(statistics.median(rows))
    return Skew(most, median, rows.index(most), round(most / median, 2) if median else None)


def bytes_by_partition(files: Iterable[FileEntry]) -> dict[int, dict[int, int]]:
    """Bytes per operator and partition of the files from which Spark opens the state.

    Raises:
        DataError: a path names a partition that no operator has.
    """
    found: dict[int, dict[int, int]] = {}
    for entry in files:
        match = _PARTITION.fullmatch(entry.path)
        if match is not None:
            if len(match[2]) > _MOST_DIGITS or int(match[2]) >= MAX_PARTITIONS:
                raise DataError("a snapshot lists a file of a partition that no operator has", path=entry.path)
            partitions = found.setdefault(int(match[1]), {})
            partitions[int(match[2])] = partitions.get(int(match[2]), 0) + entry.size_bytes
    return found


def operators_in(files: Iterable[FileEntry]) -> set[int]:
    """The numbers of the operators that have state there."""
    return {int(match[1]) for entry in files if (match := _OPERATOR.fullmatch(entry.path))}
