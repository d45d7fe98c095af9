"""Files with migrations: what they declare, and what is refused before anything is launched."""

from __future__ import annotations

import sys

import pytest

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.migration import migrate, read_migrations

HEAD = b"from airflow_streamstate.migration import migrate\n"
GOOD = (
    HEAD
    + b"""
FACTOR = 2

def halved(key, state):
    return {"sum": state["sum"] // FACTOR}

@migrate(query="sums", operator="aggregate:k", inverse=halved)
def doubled(key, state):
    return {"sum": state["sum"] * FACTOR}

@migrate(query="sums", operator="1", variable="left")
def dropped(key, state):
    return None
"""
)


def test_a_file_declares_a_function_for_each_table() -> None:
    """With its globals, in order; a side of a join is its variable."""
    first, second = read_migrations(GOOD, "m.py")
    assert (first.query, first.operator, first.table) == ("sums", "aggregate:k", "rows")
    assert first.migrate({"k": "a"}, {"sum": 21}) == {"sum": 42}
    assert first.inverse is not None
    assert first.inverse({"k": "a"}, {"sum": 42}) == {"sum": 21}
    assert (second.table, second.inverse, second.migrate({}, {})) == ("left", None, None)


def test_a_function_that_is_declared_elsewhere_stays_what_it_is() -> None:
    """The decorator changes nothing outside of a file that is read."""

    @migrate(query="sums", operator="aggregate")
    def same(key: object, state: object) -> object:
        return state

    assert same({}, {"n": 1}) == {"n": 1}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"x = 1\n", "has no migration"),
        (HEAD, "has no migration"),
        (b"def f(:\n", "line=1"),
        (HEAD + b"\nx = 1 / 0\n", "line=3"),
        (b"\xff\xfe", "cannot be run"),
        (GOOD + GOOD, "two migrations are for the same state"),
        (b"import no_such_module_at_all\n", "ModuleNotFoundError"),
        (b"raise SystemExit(3)\n", "SystemExit"),
    ],
)
def test_a_file_that_is_not_usable_is_refused(body: bytes, said: str) -> None:
    """With its line where it cannot be run; a file that ends the process does not."""
    with pytest.raises(InvalidRequestError, match="file=") as refused:
        read_migrations(body, "m.py")
    assert said in str(refused.value)


def test_a_file_may_declare_dataclasses_and_has_no_future_of_ours() -> None:
    """It is run as a separate module, with none of this package's compiler flags; and leaves no module behind."""
    body = (
        HEAD
        + b"""
import sys
from dataclasses import dataclass

@dataclass(frozen=True)
class Sum:
    value: int

@migrate(query="sums", operator="aggregate")
def same(key, state: int):
    return {"sum": Sum(state["sum"]).value, "kind": str(same.__annotations__["state"])}
"""
    )
    (found,) = read_migrations(body, "m.py")
    assert found.migrate({}, {"sum": 3}) == {"sum": 3, "kind": "<class 'int'>"}
    assert "__migration__" not in sys.modules
