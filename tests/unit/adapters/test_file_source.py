"""The file source."""

from __future__ import annotations

import pytest

from airflow_streamstate.adapters.file_source import FileSource
from airflow_streamstate.adapters.source import PlannedSource


@pytest.mark.parametrize(
    ("one", "other"),
    [("/data/in", "file:///data/in/"), ("s3://bucket/in", "s3a://bucket/in/"), ("/data/in", "file:/data/in")],
)
def test_one_folder_has_one_identity(one: str, other: str) -> None:
    """However the folder is written, and in whatever format it is read."""
    adapter = FileSource()
    said = adapter.identify(PlannedSource("json", {"path": one}))
    assert said == adapter.identify(PlannedSource("csv", {"path": other}))
    assert said != adapter.identify(PlannedSource("json", {"path": f"{one}2"}))


def test_files_that_are_deleted_once_read_are_mentioned() -> None:
    """Going back to an older position then finds nothing; archived files are only elsewhere."""
    adapter = FileSource()
    assert adapter.remarks(PlannedSource("json", {"path": "/a", "cleansource": "delete"}))
    assert adapter.remarks(PlannedSource("json", {"path": "/a", "cleansource": "archive"})) == ()


def test_a_file_that_is_gone_is_explained() -> None:
    """Spark's words for it become a sentence; other failures stay Spark's."""
    adapter = FileSource()
    assert "is gone" in (adapter.explain("[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error …") or "")
    assert adapter.explain("[DIVIDE_BY_ZERO]") is None


def test_a_password_in_a_path_is_no_part_of_what_it_is() -> None:
    """Identities stand in events and snapshots; a container before an account is none."""
    one, other = (PlannedSource("json", {"path": f"ftp://ops:{word}@host/in"}) for word in ("first1", "second2"))
    assert FileSource().identify(one) == FileSource().identify(other) == "file ftp://***@host/in"
    azure = PlannedSource("json", {"path": "abfss://data@account.dfs.core.windows.net/in"})
    assert FileSource().identify(azure) == "file abfss://data@account.dfs.core.windows.net/in"
