"""What ServerStore is without a server; its promises are held in ``tests/contract/store``."""

from __future__ import annotations

import pytest

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.store.s3 import s3_store
from support.s3_server import options_for

NOWHERE = options_for("http://127.0.0.1:9")


def test_the_uri_is_bucket_and_prefix() -> None:
    """The place, and nothing of options or credentials."""
    assert s3_store("b", "", NOWHERE).uri == "s3://b"
    assert s3_store("b", "p/q", NOWHERE).uri == "s3://b/p/q"


@pytest.mark.parametrize("prefix", ["/p", "p/", "p//q", "../p", "p\0"])
def test_a_prefix_that_no_key_can_begin_with_is_refused(prefix: str) -> None:
    """A store of other keys than it says cannot be opened."""
    with pytest.raises(InvalidRequestError):
        s3_store("b", prefix, NOWHERE)
