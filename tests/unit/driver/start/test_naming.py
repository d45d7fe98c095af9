"""Which query of a script is which (1a.12)."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_streamstate.driver.start.query_names import NameBook
from airflow_streamstate.errors import InvalidRequestError


@pytest.mark.parametrize(
    ("query_name", "location", "name"),
    [
        ("orders", "/cp/other", "orders"),
        (None, "/cp/orders", "orders"),
        (None, "s3a://bucket/cp/orders/", "orders"),
        (None, "orders", "orders"),
        (None, "/cp/ord ers", "ord ers"),
        *(("", location, "query-1") for location in (None, "", "/", "file:///")),
    ],
)
def test_a_name_is_the_query_name_else_the_last_part_of_the_location(
    query_name: str | None, location: str | None, name: str
) -> None:
    """Else it is query-1, so that a script with one unnamed query needs no change (1a.12)."""
    assert NameBook().name_of(query_name, location) == name


def test_the_same_query_started_again_keeps_its_name() -> None:
    """A loop that starts its query again continues with the same one (1a.12)."""
    book = NameBook()
    for _ in range(3):
        assert book.name_of(None, None, "plan-a") == "query-1"
        assert book.name_of("orders", "/cp/x") == "orders"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((None, None, "plan-a"), (None, None, "plan-b")),
        ((None, "/a/cp"), (None, "/b/cp")),
        (("cp", None), (None, "/b/cp")),
        ((None, None), ("query-1", None)),
    ],
)
def test_two_queries_of_one_name_are_refused_with_advice(first: Any, second: Any) -> None:
    """One would take over the other's state (1a.12)."""
    book = NameBook()
    book.name_of(*first)
    with pytest.raises(InvalidRequestError) as caught:
        book.name_of(*second)
    assert "queryName" in caught.value.next_step


def test_a_name_that_no_key_can_hold_is_refused_and_not_kept() -> None:
    """A name of 300 bytes is refused before anything is touched (Law 10)."""
    book = NameBook()
    with pytest.raises(InvalidRequestError):
        book.name_of("x" * 300, None)
    assert book.name_of("x" * 100, None) == "x" * 100
