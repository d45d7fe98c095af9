"""Every backend has every method of the interface, with its very parameters."""

from __future__ import annotations

import inspect

import pytest

from airflow_streamstate.store.base import Store
from airflow_streamstate.store.local import LocalStore
from airflow_streamstate.store.memory import MemoryStore
from airflow_streamstate.store.server import ServerStore
from support.faulty_store import FaultyStore

METHODS = [name for name in vars(Store) if not name.startswith("_") and name != "uri"]


@pytest.mark.parametrize("backend", [LocalStore, MemoryStore, ServerStore, FaultyStore])
@pytest.mark.parametrize("name", METHODS)
def test_a_backend_can_stand_for_another(backend: type, name: str) -> None:
    """Names, order and defaults of parameters are the interface's."""
    assert inspect.signature(getattr(backend, name)) == inspect.signature(getattr(Store, name))
    assert isinstance(inspect.getattr_static(backend, "uri"), property)
