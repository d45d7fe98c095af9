"""The register of an adoption."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_streamstate.control.stream import StreamControl, adoption_register
from airflow_streamstate.errors import ConflictError, ObjectExistsError, VersionConflictError
from airflow_streamstate.protocol.records import Adoption
from airflow_streamstate.store.memory import MemoryStore
from support.examples import example
from support.fake_clock import FakeClock


def test_the_first_one_wins() -> None:
    """Created once, and replaced only as it was read; one that is gone is another's. (Law 1)"""
    register = adoption_register(StreamControl(MemoryStore(), "orders", FakeClock()))
    adoption = example(Adoption)
    assert isinstance(adoption, Adoption)
    assert register.read() is None
    with pytest.raises(ConflictError, match="another controller has continued"):
        register.update(lambda now: now)
    begun = register.create(adoption)
    with pytest.raises(ObjectExistsError):
        register.create(replace(adoption, write_id="other"))
    register.update(lambda now: replace(now, take=3), since=begun)
    with pytest.raises(VersionConflictError):
        register.update(lambda now: replace(now, take=4), since=begun)
    found = register.read()
    assert found is not None
    assert found.value.take == 3
