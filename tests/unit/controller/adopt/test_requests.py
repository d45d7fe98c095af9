"""What can be asked for, and which query a checkpoint is of."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_streamstate.controller.adopt.adoptions import AdoptRequest, read_checkpoints
from airflow_streamstate.errors import InvalidRequestError
from support.adopting import AdoptingStage


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("/old/counts", {"counts": "/old/counts"}),
        ("/old/counts/", {"counts": "/old/counts"}),
        ("file:///old/counts", {"counts": "/old/counts"}),
        ("s3a://lake/old/counts", {"counts": "s3://lake/old/counts"}),
        ("totals=s3a://lake/old/counts", {"totals": "s3://lake/old/counts"}),
        ("/old/date=1/counts", {"counts": "/old/date=1/counts"}),
        ("my query=/old/x", {"my query": "/old/x"}),
        ("old/x", {"x": str(Path.cwd() / "old" / "x")}),
    ],
)
def test_a_query_has_the_name_that_was_said_or_that_of_its_folder(word: str, found: dict[str, str]) -> None:
    """As the runtime names it (1a.12)."""
    assert read_checkpoints([word]) == found


@pytest.mark.parametrize("words", [[""], ["counts="], ["/"], ["/a/x", "/b/x"], ["a=/x/y", "b=/x/y"]])
def test_what_names_no_query_or_two_is_refused(words: list[str]) -> None:
    """In one sentence."""
    with pytest.raises(InvalidRequestError):
        read_checkpoints(words)


def test_several_queries_only_when_they_are_stopped(adopting: AdoptingStage) -> None:
    """The first that ends may cut the others' batches."""
    deploy, two = adopting.request(), {"a": "/x/a", "b": "/x/b"}
    with pytest.raises(InvalidRequestError, match="several queries"):
        AdoptRequest(deploy, two)
    assert AdoptRequest(deploy, two, is_stopped=True).checkpoints == two
    with pytest.raises(InvalidRequestError, match="no checkpoint"):
        AdoptRequest(deploy, {})


@pytest.mark.parametrize(
    "uri",
    [
        "s3://AKIA:SECRET@lake/x",
        "s3a://AKIA:SEC/SECRET@lake/x",
        "counts=s3://AKIA:SECRET@lake",
        "abfss://lake@one.dfs.core.windows.net/x?sig=SECRET",
        "abfss://lake:SECRET@one.dfs.core.windows.net/x",
        "https://user:SECRET@host/x",
    ],
)
def test_a_secret_in_a_place_is_neither_recorded_nor_shown(adopting: AdoptingStage, uri: str) -> None:
    """It would be stored in the home, in the answer, and in messages."""
    for ask in (
        lambda: read_checkpoints([uri]),
        lambda: AdoptRequest(adopting.request(), {"x": uri.removeprefix("counts=")}),
    ):
        with pytest.raises(InvalidRequestError, match="more than a place") as told:
            ask()
        assert "SECRET" not in str(told.value)


@pytest.mark.parametrize("uri", ["/a?b/user@x", "abfss://lake@one.dfs.core.windows.net/x", "gs://lake/a@b:c"])
def test_a_place_may_hold_any_sign(uri: str) -> None:
    """Where no secret can occur."""
    assert list(read_checkpoints([f"counts={uri}"]).values()) == [uri]
