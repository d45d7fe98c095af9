"""What is not proven of a moved source is refused before its checkpoint is built (``--move-source``)."""

from __future__ import annotations

import pytest

from airflow_streamstate.checkpoint.file_source import FileSourceEntry
from airflow_streamstate.connectors.files import FileSource
from airflow_streamstate.connectors.source import Source
from airflow_streamstate.driver.attempt.ports import QuerySource
from airflow_streamstate.driver.attempt.query_sources import KnownSource
from airflow_streamstate.driver.start.query_seed import MovedSource
from airflow_streamstate.errors import IncompatibleUpgradeError
from airflow_streamstate.protocol.positions import SourceIdentity

DAY = 86_400_000
NOW = 1_000 * DAY
MOVES = {"/a": "/b"}
LOG = [FileSourceEntry(f"file:///a/{n}", NOW, n) for n in range(3)]
THERE = {f"file:///b/{n}": NOW for n in range(3)}


def check(
    times: dict[str, int],
    at_old: tuple[str, ...] = (),
    *,
    offset: int = 2,
    entries: list[FileSourceEntry] = LOG,
    **options: str,
) -> None:
    source = Source("json", {"path": "/b", **options})
    known = KnownSource(QuerySource(source, 0), FileSource(), SourceIdentity("file", "file /b"))
    MovedSource("counts", known, entries, MOVES, offset, times).check(frozenset(f"file:///a/{name}" for name in at_old))


def test_what_is_there_whole_is_moved() -> None:
    """With files that are not read yet, and with those that were read and are gone at either place."""
    check(THERE)
    check({**THERE, "file:///b/new": NOW + 1}, at_old=("0", "new"))
    check({"file:///b/0": NOW})
    check(THERE, offset=1)


@pytest.mark.parametrize(
    ("times", "at_old", "offset", "fact"),
    [
        ({**THERE, "file:///a/3": NOW}, (), 2, "elsewhere"),
        ({"file:///b/0": NOW, "file:///b/1": NOW}, (), 1, "a batch that was started"),
        ({"file:///b/in/0": NOW}, (), 2, "none of the files that were read"),
        ({}, (), 2, "none of the files that were read"),
        (THERE, ("new",), 2, "at the old place, and not at the new one"),
        ({**dict.fromkeys(THERE, NOW + 9 * DAY), "file:///b/new": NOW + DAY}, (), 2, "never would be"),
    ],
)
def test_what_would_be_read_again_or_never_is_refused(
    times: dict[str, int], at_old: tuple[str, ...], offset: int, fact: str
) -> None:
    """Each with files and the next step."""
    with pytest.raises(IncompatibleUpgradeError) as refused:
        check(times, at_old, offset=offset)
    assert fact in refused.value.message
    assert refused.value.next_step


def test_options_of_the_source_decide_what_is_certain() -> None:
    """Files that Spark itself removed, that it knows by name, or that are never too old."""
    check({}, cleansource="delete")
    later = {**dict.fromkeys(THERE, NOW + 9 * DAY), "file:///b/new": NOW + DAY}
    check(later, maxfileage="30d")
    check(later, latestfirst="true", maxfilespertrigger="1")
    check({**later, "file:///b/sub/0": NOW + DAY, "file:///b/new": NOW + 9 * DAY}, filenameonly="true")


def test_a_file_that_was_too_old_before_is_no_matter() -> None:
    """It was never to be read."""
    check({**THERE, "file:///b/old": NOW - 8 * DAY})
