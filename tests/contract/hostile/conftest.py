"""Hostile objects are read without garbage collection."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _collected_before_and_after() -> Iterator[None]:
    """Nothing is collected while an object is read that is nested to the bottom of the stack.

    A finalizer of whatever other tests left behind would find no stack to run on, and be reported as a failure.
    """
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    gc.collect()
