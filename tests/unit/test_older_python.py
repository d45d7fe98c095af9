"""What replaces Python 3.10 on Python 3.9 does the same: here it is compared with what this Python has."""

from __future__ import annotations

import itertools
import sys
import typing
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from airflow_streamstate import older_python
from airflow_streamstate.older_python import hints_of, read_hints, standard_modules, zipped
from airflow_streamstate.protocol.terms.declaration import terms_of
from airflow_streamstate.protocol.terms.order import RetireTerms
from airflow_streamstate.protocol.upgrades import Upgrade
from support.messages import KINDS

ZIPS = (zipped, older_python._strictly)


@pytest.mark.parametrize("strictly", ZIPS)
@pytest.mark.parametrize("given", [(), ("",), ("ab",), ("ab", "cd"), ("ab", (1, None), [2, 3])])
def test_equal_lengths_are_zipped(strictly: Callable[..., Iterable[Any]], given: tuple[Iterable[Any], ...]) -> None:
    """As by ``zip``."""
    assert list(strictly(*given)) == list(zip(*given, strict=True))


@pytest.mark.parametrize("strictly", ZIPS)
@pytest.mark.parametrize("given", [("ab", "c"), ("a", "bc"), ("", "b"), ("ab", "cd", "e")])
def test_different_lengths_are_an_error(strictly: Callable[..., Iterable[Any]], given: tuple[str, ...]) -> None:
    """After the pairs that there are, as by ``zip``."""
    pairs = iter(strictly(*given))
    for _ in range(min(map(len, given))):
        next(pairs)
    with pytest.raises(ValueError, match=r"zip"):
        next(pairs)


@pytest.mark.parametrize("given", ["", "a", "ab", "abc"])
def test_pairs_are_those_of_itertools(given: str) -> None:
    """Also of an iterator."""
    assert list(older_python._pairs(given)) == list(itertools.pairwise(given))
    assert list(older_python._pairs(iter(given))) == list(itertools.pairwise(given))


@pytest.mark.parametrize("cls", [*KINDS.values(), Upgrade, RetireTerms], ids=lambda cls: cls.__name__)
def test_the_types_of_fields_are_read_as_by_python(cls: type) -> None:
    """Unions, texts with checks, classes of other modules, and what is inherited (Law 7)."""
    assert read_hints(cls) == typing.get_type_hints(cls, include_extras=True) == hints_of(cls)


def test_terms_are_made_of_what_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A term that may be None is one on Python 3.9, too."""
    known = terms_of(RetireTerms)
    monkeypatch.setattr("airflow_streamstate.protocol.terms.declaration.hints_of", read_hints)
    from airflow_streamstate.protocol.terms import declaration

    assert declaration._terms_of.__wrapped__(RetireTerms) == known


def test_the_standard_library_is_found_by_its_files() -> None:
    """What is installed is not part of it."""
    found = older_python._standard_modules()
    assert {"os", "json", "sys", "subprocess", "_json"} <= found
    assert {"pytest", "airflow_streamstate", "boto3"} & found == set()
    assert standard_modules() == sys.stdlib_module_names
