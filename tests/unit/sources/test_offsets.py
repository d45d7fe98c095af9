"""Offsets of partitioned sources as texts, and their order."""

from __future__ import annotations

import json

import pytest

from airflow_streamstate.sources.offsets import PartOffset, SourceOffset, between, compare, from_json, parse, to_text

FULL = SourceOffset(
    "lineage",
    3,
    "bytes",
    {"b": PartOffset({"at": 5}, 2, 7, "digest", 40, 1_000, False), "a": PartOffset(None, is_finished=True)},
    is_finished=True,
)


def test_an_offset_comes_back_from_its_text() -> None:
    """With everything, and equal offsets as equal texts whatever the order of their parts."""
    assert parse(to_text(FULL)) == FULL
    assert to_text(parse(to_text(FULL))) == to_text(FULL)
    turned = SourceOffset("lineage", 3, "bytes", dict(reversed(FULL.parts.items())), is_finished=True)
    assert to_text(turned) == to_text(FULL)


@pytest.mark.parametrize(
    "raw", [{}, [], 5, None, {"streamstate": 2, "parts": {}}, {"streamstate": 1, "parts": []}, {"logOffset": 1}]
)
def test_what_is_no_offset_is_a_value_error(raw: object) -> None:
    """Also one of a later format."""
    with pytest.raises(ValueError, match="no offset of a partitioned source"):
        from_json(raw)
    with pytest.raises(ValueError, match="no offset of a partitioned source"):
        parse(json.dumps(raw))


def test_the_order_of_offsets() -> None:
    """By what was given of each part; another version of the source is no other place."""
    one = SourceOffset("x", parts={"a": PartOffset(5, units=5)})
    more = SourceOffset("x", parts={"a": PartOffset(5, units=5), "b": PartOffset(1, units=1)})
    other = SourceOffset("x", parts={"a": PartOffset(2, units=2), "b": PartOffset(3, units=3)})
    assert (compare(one, more), compare(more, one), compare(one, other)) == ("behind", "ahead", "apart")
    assert compare(one, SourceOffset("x", 9, parts=one.parts)) == "same"
    assert (between(one, more), between(more, one), between(one, other)) == (1, 0, 3)
