"""Which texts are keys."""

from __future__ import annotations

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.store.base import MAX_KEY_BYTES, Store, check_folder, check_key, check_prefix, is_key
from airflow_streamstate.store.local import LocalStore
from airflow_streamstate.store.memory import MemoryStore
from airflow_streamstate.store.server import ServerStore
from support.faulty_store import FaultyStore

BAD = ["", "/", "/a", "a/", "a//b", ".", "..", "a/.", "../a", "a/../b", "\0", "a\tb", "a\x7f", "a\x85b", "\ud800"]


@pytest.mark.parametrize("key", ["a", "a/b", ".a", "..a/b..", "a b", "é/漢", "...", "x" * MAX_KEY_BYTES])
def test_a_key_is_given_back_unchanged(key: str) -> None:
    """What may name an object is returned as it is."""
    assert check_key(key) == check_folder(key) == check_prefix(key) == key
    assert is_key(key)


@pytest.mark.parametrize("key", [*BAD, "a/.~streamstate-1", ".~streamstate-lock/b"])
def test_what_is_no_key_is_refused_readably(key: str) -> None:
    """A refused key is shown in printable characters, with what to do."""
    assert not is_key(key)
    with pytest.raises(InvalidRequestError) as caught:
        check_key(key)
    assert str(caught.value).isprintable()
    assert caught.value.next_step


def test_length_counts_in_bytes_of_utf8() -> None:
    """A key is too long by its bytes, not by its characters, and is not repeated whole in the error."""
    with pytest.raises(InvalidRequestError, match="too long") as caught:
        check_key("é" * (MAX_KEY_BYTES // 2 + 1))
    assert len(str(caught.value)) < 300


def test_a_prefix_may_end_anywhere_in_a_key() -> None:
    """ "" and a cut or closed last part are prefixes; folders before it are checked like keys."""
    for prefix in ("", "a", "a/", "a/b", "a/.", "."):
        assert check_prefix(prefix) == prefix
    for prefix in ("/", "a//", "../", "a/../", "\0", "a/\n"):
        with pytest.raises(InvalidRequestError):
            check_prefix(prefix)


def test_the_root_is_a_folder() -> None:
    """ "" is the root; a trailing slash is not part of a folder's name."""
    assert check_folder("") == ""
    with pytest.raises(InvalidRequestError):
        check_folder("a/")


@given(st.text(max_size=40))
def test_a_key_never_leaves_its_folder(text: str) -> None:
    """Whatever is taken as a key is relative, printable in UTF-8, and climbs nowhere; each of its prefixes is one."""
    if not is_key(text):
        return
    assert not text.startswith("/")
    assert ".." not in text.split("/")
    assert text.encode().decode() == text
    for end in range(len(text) + 1):
        check_prefix(text[:end])


METHODS = [name for name in vars(Store) if not name.startswith("_") and name != "uri"]


@pytest.mark.parametrize("backend", [LocalStore, MemoryStore, ServerStore, FaultyStore])
@pytest.mark.parametrize("name", METHODS)
def test_a_backend_can_stand_for_another(backend: type, name: str) -> None:
    """Names, order and defaults of parameters are the interface's."""
    assert inspect.signature(getattr(backend, name)) == inspect.signature(getattr(Store, name))
    assert isinstance(inspect.getattr_static(backend, "uri"), property)
