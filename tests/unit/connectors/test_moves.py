"""Words for a move, and the consent to it."""

from __future__ import annotations

import pytest

from airflow_streamstate.connectors.moves import consent_missing, describe, passes_over, reads_again
from airflow_streamstate.protocol.positions import SourceMove

BACK = SourceMove("a", "3", "1", 0, 2, "files")
ON = SourceMove("b", "3", "5", 1_200, 0, "rows")
STILL = SourceMove("c", "3", "3")
UNKNOWN = SourceMove("d", "3", "9")


@pytest.mark.parametrize(
    ("moves", "words", "over", "again"),
    [
        ((BACK,), "a: 2 files read again (3 to 1)", False, True),
        ((ON,), "b: 1,200 rows passed over (3 to 5)", True, False),
        ((STILL,), "c: where it was (3)", False, False),
        (
            (UNKNOWN,),
            "d: unknown how much is passed over, unknown how much is read again (3 to 9)",
            True,
            True,
        ),
        ((SourceMove("e", "1", "2", 0, 0, "files"),), "e: nothing passed over (1 to 2)", False, False),
    ],
)
def test_what_cannot_be_counted_is_as_good_as_some(
    moves: tuple[SourceMove, ...], words: str, over: bool, again: bool
) -> None:
    """Nothing is passed over or read again without a report. (Law 5)"""
    assert describe(moves) == (words,)
    assert (passes_over(moves), reads_again(moves)) == (over, again)


def test_the_options_that_are_missing_are_named() -> None:
    """Each names the query, and only what has to be accepted."""
    both = (BACK, ON)
    assert consent_missing("q", both, (), ()) == "--accept-lost-input q and --accept-repeated-input q"
    assert consent_missing("q", both, ("q",), ("other",)) == "--accept-repeated-input q"
    assert consent_missing("q", both, ("q",), ("q",)) == ""
    assert consent_missing("q", (STILL,), (), ()) == ""
