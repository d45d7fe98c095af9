"""Which query of a script is which (1a.12)."""

from __future__ import annotations

import pytest

from airflow_streamstate.driver.start.naming import NameBook
from airflow_streamstate.errors import InvalidRequestError


def test_the_query_name_counts_most() -> None:
    """queryName wins over the location that the script had set (1a.12)."""
    assert NameBook().name_of("orders", "/cp/other") == "orders"


@pytest.mark.parametrize(
    ("location", "name"),
    [("/cp/orders", "orders"), ("s3a://bucket/cp/orders/", "orders"), ("orders", "orders"), ("/cp/ord ers", "ord ers")],
)
def test_a_location_names_by_its_last_part(location: str, name: str) -> None:
    """Without a name, the last part of the script's own checkpointLocation is it (1a.12)."""
    assert NameBook().name_of(None, location) == name


@pytest.mark.parametrize("location", [None, "", "/", "file:///"])
def test_the_only_unnamed_query_is_query_1(location: str | None) -> None:
    """A script with one nameless query needs no change (1a.12)."""
    assert NameBook().name_of("", location) == "query-1"


def test_the_same_query_started_again_keeps_its_name() -> None:
    """A loop that starts its query again goes on with the same one (1a.12)."""
    book = NameBook()
    for _ in range(3):
        assert book.name_of(None, None, "plan-a") == "query-1"
        assert book.name_of("orders", "/cp/x") == "orders"


def test_a_second_unnamed_query_is_refused_with_advice() -> None:
    """Two nameless queries would swap their state at the next upgrade (1a.12)."""
    book = NameBook()
    book.name_of(None, None, "plan-a")
    with pytest.raises(InvalidRequestError) as caught:
        book.name_of(None, None, "plan-b")
    assert "queryName" in caught.value.next_step


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((None, "/a/cp"), (None, "/b/cp")),
        (("cp", None), (None, "/b/cp")),
        ((None, None), ("query-1", None)),
    ],
)
def test_two_ways_to_one_name_are_refused(
    first: tuple[str | None, str | None], second: tuple[str | None, str | None]
) -> None:
    """One name never means two queries: one would take over the other's state (1a.12)."""
    book = NameBook()
    book.name_of(*first)
    with pytest.raises(InvalidRequestError):
        book.name_of(*second)


def test_a_name_that_no_key_can_hold_is_refused_and_not_kept() -> None:
    """A name of 300 bytes is refused before anything is touched (Law 10)."""
    book = NameBook()
    with pytest.raises(InvalidRequestError):
        book.name_of("x" * 300, None)
    assert book.name_of("x" * 100, None) == "x" * 100
