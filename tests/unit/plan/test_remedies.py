"""``airflow_streamstate.plan.codes``: one text for several differences."""

from __future__ import annotations

import pytest

from airflow_streamstate.plan.codes import CODES, DRAIN, MIGRATE, RESTORE, difference, remedies_of

WINDOW, AGGREGATE, LIMIT, ADDED, TRIGGER = (
    difference(code, "", "x")
    for code in ("window-changed", "aggregate-added", "limit-changed", "query-added", "trigger-changed")
)


def test_what_fits_has_no_remedy_beside_others() -> None:
    """No remedy claims that nothing needs to be done where something does."""
    assert remedies_of([TRIGGER]) == ""
    assert remedies_of([TRIGGER, WINDOW]) == DRAIN
    assert remedies_of([]) == ""


def test_one_remedy_is_named_once_and_without_its_code() -> None:
    """It needs no list."""
    other = difference("key-added", "", "y")
    assert remedies_of([WINDOW, other, WINDOW]) == DRAIN
    assert remedies_of([AGGREGATE]) == MIGRATE


def test_a_migration_is_not_offered_where_it_does_not_settle_everything() -> None:
    """The drain that one difference needs settles the other."""
    assert remedies_of([AGGREGATE, WINDOW]) == DRAIN


def test_what_a_person_decides_comes_first() -> None:
    """Whatever the order of the differences is, and of the queries."""
    words = remedies_of([WINDOW, LIMIT, TRIGGER, ADDED])
    assert words == (
        f"For limit-changed: {LIMIT.remedy} For query-added: {ADDED.remedy} After that, for window-changed: {DRAIN}"
    )


@pytest.mark.parametrize("code", sorted(CODES))
def test_what_fits_by_itself_is_left_out_beside_a_drain(code: str) -> None:
    """Of every code."""
    words = remedies_of([difference(code, "", "x"), WINDOW])
    assert RESTORE not in words
    assert "needs nothing" not in words
