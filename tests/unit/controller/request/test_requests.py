"""What a request refuses before anything is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_streamstate.controller.request.requests import deploy_request
from airflow_streamstate.errors import InvalidRequestError


@pytest.mark.parametrize("stream_id", ["../x", "", "x" * 64, "Upper", "a/b", "-a", "a_b", "a\n"])
def test_hostile_stream_ids_are_refused(stream_id: str) -> None:
    """A stream id is one part of a key, and nothing else."""
    with pytest.raises(InvalidRequestError, match="not a valid stream id"):
        deploy_request(stream_id=stream_id, application=Path("job.py"))


@pytest.mark.parametrize(
    "changes",
    [
        {"request_id": "../x"},
        {"snapshot_id": "A"},
        {"start": "empty"},
        {"start": "fresh", "snapshot_id": "s-1"},
        {"allow_new_queries": ("",)},
    ],
)
def test_what_cannot_be_is_refused(changes: dict) -> None:
    """A request that contradicts itself is refused with the way out."""
    with pytest.raises(InvalidRequestError):
        deploy_request(stream_id="orders", application=Path("job.py"), **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"arguments": ("--x", "\udcff")},
        {"conf": {"spark.a": "\ud800"}},
        {"conf": {"spark.\ud800": "a"}},
        {"py_files": (Path("\udcff.py"),)},
        {"application": Path("\udcff.py")},
        {"reason": "\ud800"},
        {"version_label": "\ud800"},
        {"packages": ("\ud800",)},
        {"master": "\ud800"},
        {"move_sources": {"/a": "/\ud800"}},
        {"offsets": {"counts": ("\ud800",)}, "start": "seed"},
    ],
)
def test_what_is_no_utf_8_is_refused(changes: dict) -> None:
    """It could not be recorded, so a later start would run something else. (Law 15)"""
    with pytest.raises(InvalidRequestError, match="cannot be recorded") as caught:
        deploy_request(**{"stream_id": "orders", "application": Path("job.py"), **changes})
    assert caught.value.context == {"what": next(iter(changes))}
    str(caught.value).encode()
