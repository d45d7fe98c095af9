"""The register of an adoption, changed by compare-and-swap only."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_streamstate.control.adoption import AdoptionRegister
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.errors import ObjectExistsError, VersionConflictError
from airflow_streamstate.protocol.adoptions import Adoption
from airflow_streamstate.store.memory import MemoryStore
from support.examples import EXAMPLES
from support.fake_clock import FakeClock


def test_the_first_one_wins() -> None:
    """Created once, and replaced only as it was read. (Law 1)"""
    register = AdoptionRegister(StreamControl(MemoryStore(), "orders", FakeClock()))
    [example] = [one for one in EXAMPLES if isinstance(one, Adoption)]
    assert register.read() is None
    begun = register.create(example)
    with pytest.raises(ObjectExistsError):
        register.create(replace(example, write_id="other"))
    register.replace(replace(example, take=3), begun.version)
    with pytest.raises(VersionConflictError):
        register.replace(replace(example, take=4), begun.version)
    found = register.read()
    assert found is not None
    assert found.value.take == 3
