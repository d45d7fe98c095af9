"""How state is spread: bytes of each operator and partition by the manifest, and the skew of rows."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from airflow_streamstate.protocol.manifest import FileEntry

_PARTITION = re.compile(r"state/([0-9]+)/([0-9]+)/.+")
_OPERATOR = re.compile(r"state/([0-9]+)/.+")


@dataclass(frozen=True)
class Skew:
    """How unevenly rows lie.

    Attributes:
        most: rows of the fullest partition.
        median: of all of them.
        fullest: which one it is; the first of several.
        ratio: the first by the second; None where the median is 0.
    """

    most: int
    median: float
    fullest: int
    ratio: float | None

    def to_json(self) -> dict[str, object]:
        """``most median fullest ratio``."""
        return {"most": self.most, "median": self.median, "fullest": self.fullest, "ratio": self.ratio}


def skew_of(rows: Sequence[int]) -> Skew | None:
    """The skew of an operator; None where it has no partition.

    Args:
        rows: of each partition, empty ones among them.
    """
    if not rows:
        return None
    most, median = max(rows), float(statistics.median(rows))
    return Skew(most, median, rows.index(most), round(most / median, 2) if median else None)


def bytes_by_partition(files: Iterable[FileEntry]) -> dict[int, dict[int, int]]:
    """Bytes per operator and partition: of the files that Spark opens the state from, which one version may share."""
    found: dict[int, dict[int, int]] = {}
    for entry in files:
        match = _PARTITION.fullmatch(entry.path)
        if match is not None:
            partitions = found.setdefault(int(match[1]), {})
            partitions[int(match[2])] = partitions.get(int(match[2]), 0) + entry.size_bytes
    return found


def operators_in(files: Iterable[FileEntry]) -> set[int]:
    """The numbers of the operators that have state there."""
    return {int(match[1]) for entry in files if (match := _OPERATOR.fullmatch(entry.path))}
