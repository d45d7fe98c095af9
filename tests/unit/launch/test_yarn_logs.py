"""Logs out of the file that a NodeManager leaves; real ones are read in ``tests/yarn``."""

from __future__ import annotations

import pytest

from airflow_streamstate.launch.yarn_api import log_in


def text(value: str) -> bytes:
    return len(value.encode()).to_bytes(2, "big") + value.encode()


def record(container: str, value: bytes, head: bytes) -> bytes:
    return b"anything before" + text(container) + head + value + b"and behind"


@pytest.mark.parametrize("size", [5, 300])
def test_a_log_is_found_by_container_and_name(size: int) -> None:
    """Lengths are numbers of one byte or more."""
    body = text("stdout") + text(str(size)) + b"x" * size
    value = record("container_1_0001_01_000001", body, bytes([len(body)]) if len(body) < 128 else head_of(len(body)))
    assert log_in(value, "container_1_0001_01_000001", "stdout") == b"x" * size
    assert log_in(value, "container_1_0001_01_000001", "stderr") == b""
    assert log_in(value, "container_1_0001_01_000002", "stdout") == b""
    assert log_in(value[:-40], "container_1_0001_01_000001", "stdout") == b""


def head_of(size: int) -> bytes:
    """A number of two bytes, as TFile writes it."""
    return bytes([((size >> 8) - 52) & 255, size & 255])


def test_chunks_are_joined() -> None:
    """All chunks but the last have a negative length."""
    body = text("stdout") + text("6") + b"abcdef"
    first, last = body[:10], body[10:]
    chunked = bytes([256 - len(first)]) + first + bytes([len(last)]) + last
    assert log_in(text("container_1") + chunked, "container_1", "stdout") == b"abcdef"
