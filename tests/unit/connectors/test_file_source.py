"""The file source."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_streamstate.connectors.files import FileSource
from airflow_streamstate.connectors.source import AgingSource, Source


@pytest.mark.parametrize(
    ("one", "other"),
    [("/data/in", "file:///data/in/"), ("s3://bucket/in", "s3a://bucket/in/"), ("/data/in", "file:/data/in")],
)
def test_one_folder_has_one_identity(one: str, other: str) -> None:
    """However the folder is written, and in whatever format it is read."""
    connector = FileSource()
    said = connector.identify(Source("json", {"path": one}))
    assert said == connector.identify(Source("csv", {"path": other}))
    assert said != connector.identify(Source("json", {"path": f"{one}2"}))


def test_files_that_are_deleted_once_read_are_mentioned() -> None:
    """Going back to an older position then finds nothing; archived files are only elsewhere."""
    connector = FileSource()
    assert connector.remarks(Source("json", {"path": "/a", "cleansource": "delete"}))
    assert connector.remarks(Source("json", {"path": "/a", "cleansource": "archive"})) == ()


def test_a_file_that_is_gone_is_explained() -> None:
    """Spark's words for it become a sentence; other failures stay Spark's."""
    connector = FileSource()
    assert "is gone" in (connector.explain("[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error …") or "")
    assert connector.explain("[DIVIDE_BY_ZERO]") is None


GONE = "[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file {}. File does not exist. It is possible"


@pytest.mark.parametrize(
    ("path", "file", "is_input"),
    [
        ("/data/in", "file:///data/in/a.json", True),
        ("file:///data/in/", "file:/data/in/day=1/a.json", True),
        ("/data/*/in", "file:///data/x/in/a.json", True),
        ("in", "file:///home/me/in/a.json", True),
        ("s3a://b/in", "s3a://b/in/a%20b.json", True),
        ("/data/in", "file:///data/airports/a.parquet", False),
        ("/data/in", "file:///data/in2/a.parquet", False),
        ("/data/in/2", "file:///data/in", False),
    ],
)
def test_a_file_that_is_no_input_is_not_called_input(path: str, file: str, is_input: bool) -> None:
    """A static side of a join has other remedies; no way that leaves rows out is ever advised."""
    connector, failure = FileSource(), GONE.format(file)
    said = connector.explain_for(Source("json", {"path": path}), failure)
    assert (said is not None) is is_input
    words = said or connector.explain(failure) or ""
    assert file in words
    assert "link or a mount" in words
    assert "--move-source" in words
    assert ("if the stream reads it" in words) is not is_input
    assert "ignoreMissing" not in words


def test_a_folder_that_was_moved_is_named_with_the_way_on() -> None:
    """Before any source of the script is known: Spark raises it while the script is read."""
    said = FileSource().explain("[PATH_NOT_FOUND] Path does not exist: file:/data/in. SQLSTATE: 42K03")
    assert said is not None
    assert said.startswith("the script reads file:/data/in, which is gone: put it back, or a symbolic link")


def test_a_password_in_a_path_is_no_part_of_what_it_is() -> None:
    """Identities are in events and snapshots; a container before an account is none."""
    one, other = (Source("json", {"path": f"ftp://ops:{word}@host/in"}) for word in ("first1", "second2"))
    assert FileSource().identify(one) == FileSource().identify(other) == "file ftp://***@host/in"
    azure = Source("json", {"path": "abfss://data@account.dfs.core.windows.net/in"})
    assert FileSource().identify(azure) == "file abfss://data@account.dfs.core.windows.net/in"


class Listing:
    """What Spark lists, as py4j shows it: each status in Hadoop's words."""

    def __init__(self, files: dict[str, int]) -> None:
        self.files = files
        self.options: dict[str, str] = {}
        self.jvm: Any = nested("com.fasterxml.jackson.databind", ObjectMapper=lambda: self)

    @property
    def session(self) -> Any:
        return SimpleNamespace(_jsparkSession=SimpleNamespace(read=lambda: self))

    def format(self, name: str) -> Listing:
        self.options["format"] = name
        return self

    def option(self, name: str, value: str) -> Listing:
        self.options[name] = value
        return self

    def load(self, path: str) -> Listing:
        self.options["path"] = path
        return self

    def writeValueAsString(self, value: object) -> str:
        return json.dumps(value)

    def queryExecution(self) -> Any:
        statuses = SimpleNamespace(
            mkString=lambda _: "\n".join(
                f"LocatedFileStatus{{path={path}; length=1; modification_time={at}; access_time=0; owner=}}"
                for path, at in self.files.items()
            ),
            size=lambda: len(self.files),
            apply=lambda number: SimpleNamespace(getModificationTime=lambda: list(self.files.values())[number]),
        )
        location = SimpleNamespace(allFiles=lambda: statuses, inputFiles=lambda: list(self.files))
        relation = SimpleNamespace(location=lambda: location)
        return SimpleNamespace(analyzed=lambda: SimpleNamespace(relation=lambda: relation))


def nested(path: str, **leaf: object) -> Any:
    """A namespace below names that are separated by dots."""
    found: Any = SimpleNamespace(**leaf)
    for name in reversed(path.split(".")):
        found = SimpleNamespace(**{name: found})
    return found


def test_files_are_listed_with_the_options_of_the_source() -> None:
    """As text, which needs no look into them; when each was modified is asked all at once."""
    door = Listing({"file:///in/a%20b.json": 7, "file:///in/c.json": 9})
    source = Source("json", {"path": "/in", "pathglobfilter": "*.json", "maxfilespertrigger": "1"})
    opened = FileSource().open(source, door)
    assert opened.paths() == {"file:///in/a%20b.json", "file:///in/c.json"}
    assert door.options["format"] == "text"
    assert (door.options["path"], door.options["pathglobfilter"]) == ("/in", "*.json")
    assert opened.modified_at_ms() == {"file:///in/a%20b.json": 7, "file:///in/c.json": 9}


NOW_MS = 1_000_000_000_000
DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("options", "unread"),
    [
        ({}, 2),  # seven days by default, counted from the newest file that was taken
        ({"maxfileage": "1d"}, 1),
        ({"maxfileage": "48h"}, 1),
        ({"maxfileage": "172800s"}, 1),
        ({"maxfileage": "1000000000000"}, 3),
        ({"maxfileage": "a while"}, 3),
        ({"latestfirst": "true", "maxfilespertrigger": "1"}, 3),
        ({"latestfirst": "true"}, 2),
    ],
)
def test_files_that_are_too_old_to_be_read_are_not_left(options: dict[str, str], unread: int) -> None:
    """Spark passes over them for ever; before anything was taken, no file is too old."""
    ages = {"taken": 0, "new": -1, "older": 3 * DAY_MS, "oldest": 8 * DAY_MS}
    door = Listing({f"file:///in/{name}": NOW_MS - age for name, age in ages.items()})
    opened = FileSource().open(Source("json", {"path": "/in", **options}), door)
    assert isinstance(opened, AgingSource)
    assert opened.unread({"file:///in/taken"}, NOW_MS) == unread
    assert opened.unread((), 0) == 4


def test_files_that_are_known_by_their_names_are_not_left_at_another_place() -> None:
    """``fileNameOnly`` passes over a file whose name was read in another folder."""
    door = Listing({"file:///in/b/x": NOW_MS, "file:///in/b/y": NOW_MS})
    opened = FileSource().open(Source("json", {"path": "/in", "filenameonly": "true"}), door)
    assert opened.unread({"file:///in/a/x"}, NOW_MS) == 1


def test_a_file_that_is_called_like_a_status_confuses_nobody() -> None:
    """Then each is asked by itself."""
    door = Listing({"file:///in/x; modification_time=5; y": 7, "file:///in/c.json": 9})
    found = FileSource().open(Source("json", {"path": "/in"}), door).modified_at_ms()
    assert list(found.values()) == [7, 9]
