"""What is being adopted, and what was deployed, are never the same stream."""

from __future__ import annotations

import pytest

from airflow_streamstate.control.adoption import AdoptionRegister
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.errors import ConflictError, DeadlineExceededError
from airflow_streamstate.lifecycle.reserving import create_unadopted
from airflow_streamstate.protocol.register import StreamRegister
from airflow_streamstate.store.memory import MemoryStore
from support.adopting import AdoptingStage
from support.checkpoints import HookedStore, once


def test_what_is_being_adopted_is_not_deployed(adopting: AdoptingStage) -> None:
    """Its first deployment would lie where the adoption copies to. Given up, the name is free. (Law 4)"""
    with pytest.raises(DeadlineExceededError):
        adopting.adopt()
    with pytest.raises(ConflictError, match="being adopted"):
        adopting.deploy()
    assert adopting.control.register() is None
    adopting.adoptions().give_up("orders")
    assert adopting.deploy().deployment_id == "d-0001"


def test_the_checkpoint_of_a_deployment_is_not_wiped(adopting: AdoptingStage) -> None:
    """An adoption that was begun under the name of what runs by now goes no further. (Law 4)"""
    with pytest.raises(DeadlineExceededError):
        adopting.adopt()
    key = "orders/adoption.json"
    begun = adopting.store.get(key)
    assert begun is not None
    adopting.store.delete(key)
    adopting.deploy()
    adopting.run_batches(9)
    adopting.store.put(key, begun.body)
    with pytest.raises(ConflictError, match="a stream of this name"):
        adopting.adopt(is_stopped=True)
    assert adopting.checkpoint().position().batch_id == 9
    assert adopting.barriers() == []
    assert adopting.adoptions().give_up("orders").is_retired is False
    assert adopting.control.need_register().value.retirement is None


def test_of_two_at_once_one_sees_the_other(adopting: AdoptingStage) -> None:
    """The adoption is recorded between a deploy's look and its write: there is no stream then."""
    with pytest.raises(DeadlineExceededError):
        adopting.adopt()
    key = "orders/adoption.json"
    begun = adopting.store.get(key)
    assert begun is not None
    body, store = begun.body, HookedStore()
    store.after = once(lambda: MemoryStore.put(store, key, body) and None, "create", "orders/stream.json")
    control = StreamControl(store, "orders", adopting.clock)
    with pytest.raises(ConflictError, match="being adopted"):
        create_unadopted(control, register_of(adopting))
    assert control.register() is None
    assert AdoptionRegister(control).read() is not None


def test_a_deploy_that_was_cut_short_is_met_by_neither(adopting: AdoptingStage) -> None:
    """It left a register without a deployment: the adoption ends there, and what was begun of it refuses the deploy."""
    with pytest.raises(DeadlineExceededError):
        adopting.adopt()
    key = "orders/adoption.json"
    begun = adopting.store.get(key)
    assert begun is not None
    adopting.store.delete(key)
    stored = adopting.control.create_register(register_of(adopting))
    adopting.store.put(key, begun.body)
    with pytest.raises(ConflictError, match="being adopted"):
        adopting.deploy()
    with pytest.raises(ConflictError, match="a stream of this name"):
        adopting.adopt(is_stopped=True)
    assert adopting.control.register() == stored
    adopting.adoptions().give_up("orders")
    assert adopting.deploy().deployment_id == "d-0001"


def register_of(adopting: AdoptingStage) -> StreamRegister:
    """Of a stream that has no deployment."""
    return StreamRegister(
        stream_id="orders",
        fencing_token=0,
        deployment_id=None,
        attempt=0,
        attempt_mode="run",
        intent=None,
        write_id="w",
        updated_at=adopting.clock.now(),
        updated_by="tests",
    )
