"""What is being adopted, and what was deployed, are never the same stream."""

from __future__ import annotations

from functools import partial

import pytest

from airflow_streamstate.control.stream import StreamControl, adoption_register
from airflow_streamstate.controller.adopt.adoptions import Adoptions
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.deploy.attempts import Attempts
from airflow_streamstate.controller.deploy.deployment import Deployer
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.retention.pruning import Retaining
from airflow_streamstate.controller.stream_guards import create_unadopted
from airflow_streamstate.errors import ConflictError, DeadlineExceededError
from airflow_streamstate.protocol.events import Failed
from airflow_streamstate.protocol.records import StreamRegister
from airflow_streamstate.store.memory import MemoryStore
from support.adopting import AdoptingStage
from support.checkpoints import HookedStore, once, run_batches

ADOPTION_KEY = "orders/adoption.json"


def test_what_is_being_adopted_is_not_deployed(adopting: AdoptingStage) -> None:
    """Its first deployment would be where the adoption copies to. Once it is abandoned, the name is free. (Law 4)"""
    with pytest.raises(DeadlineExceededError):
        adopting.adopt()
    with pytest.raises(ConflictError, match="being adopted"):
        adopting.deploy()
    assert adopting.control.register() is None
    adopting.adoptions().give_up("orders")
    assert adopting.deploy().deployment_id == "d-0001"


def test_the_checkpoint_of_a_deployment_is_not_wiped(adopting: AdoptingStage) -> None:
    """An adoption that was started under the name of what runs by now goes no further. (Law 4)"""
    begun = taken_away(adopting)
    adopting.deploy()
    adopting.run_batches(9)
    adopting.store.put(ADOPTION_KEY, begun)
    with pytest.raises(ConflictError, match="a stream of this name"):
        adopting.adopt(is_stopped=True)
    assert adopting.checkpoint().position().batch_id == 9
    assert adopting.barriers() == []
    assert adopting.adoptions().give_up("orders").is_retired is False
    assert adopting.control.need_register().value.retirement is None


def test_of_two_at_once_one_sees_the_other(adopting: AdoptingStage) -> None:
    """The adoption is recorded between a deploy's look and its write: there is no stream then."""
    begun, store = taken_away(adopting), HookedStore()
    store.after = once(lambda: MemoryStore.put(store, ADOPTION_KEY, begun) and None, "create", "orders/stream.json")
    control = StreamControl(store, "orders", adopting.clock)
    with pytest.raises(ConflictError, match="being adopted"):
        create_unadopted(control, register_of(adopting))
    assert control.register() is None
    assert adoption_register(control).read() is not None


def test_a_deploy_that_was_cut_short_is_met_by_neither(adopting: AdoptingStage) -> None:
    """It left a register without a deployment: the adoption ends there, and its remains refuse the deploy."""
    begun = taken_away(adopting)
    stored = adopting.control.create_register(register_of(adopting))
    adopting.store.put(ADOPTION_KEY, begun)
    with pytest.raises(ConflictError, match="being adopted"):
        adopting.deploy()
    with pytest.raises(ConflictError, match="a stream of this name"):
        adopting.adopt(is_stopped=True)
    assert adopting.control.register() == stored
    adopting.adoptions().give_up("orders")
    assert adopting.deploy().deployment_id == "d-0001"


def taken_away(adopting: AdoptingStage) -> bytes:
    """The record of an adoption that was started, taken out of the home: to be put back in the worst moment."""
    with pytest.raises(DeadlineExceededError):
        adopting.adopt()
    begun = adopting.store.get(ADOPTION_KEY)
    assert begun is not None
    adopting.store.delete(ADOPTION_KEY)
    return begun.body


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


@pytest.mark.parametrize("is_stopped", [True, False])
def test_what_another_home_keeps_in_the_same_place_is_not_wiped(adopting: AdoptingStage, is_stopped: bool) -> None:
    """Two homes with one place of checkpoints, and a stream of the name in the other one: the copy would be laid over
    what runs there, and what came to nothing be removed with it. (Laws 4 and 5)"""
    adopting.deploy()
    adopting.run_batches(9)
    before = {info.key: adopting.store.get(info.key) for info in adopting.store.list_objects("")}
    own = MemoryStore("own")
    home = Home.of(own, adopting.store, adopting.folder, adopting.clock)
    context = ControllerContext.of(home, adopting.launcher, adopting.clock, "tests", None)
    adoptions = Adoptions(
        context,
        Deployer(context, Attempts(context)),
        partial(Retaining(context).retire, deletes=True),
        lambda _uri: adopting.lake,
    )
    with pytest.raises(ConflictError, match="has files where") as told:
        adoptions.adopt(adopting.wanted(is_stopped=is_stopped))
    assert "orders/deployments" in str(told.value)
    assert {info.key: adopting.store.get(info.key) for info in adopting.store.list_objects("")} == before
    assert list(own.list_objects("")) == []
    assert adopting.barriers() == []


def test_what_came_to_lie_there_since_is_not_wiped_either(adopting: AdoptingStage) -> None:
    """By the other home, after the adoption was started in this one: it is another query's. (Law 4)"""
    with pytest.raises(DeadlineExceededError):
        adopting.adopt()
    theirs = run_batches(adopting.checkpoint(), 9)
    theirs.store.put(theirs.metadata_key, b'{"id":"theirs"}')
    with pytest.raises(ConflictError, match="of another query"):
        adopting.adopt(is_stopped=True)
    assert adopting.barriers() == []
    adopting.adoptions().give_up("orders")
    assert theirs.position().batch_id == 9


def test_a_stream_that_never_ran_a_query_makes_way(adopting: AdoptingStage) -> None:
    """Its driver refused to start a query that ran before, and named the adoption as the next step."""
    adopting.deploy()
    adopting.come_to_life()
    adopting.say(Failed, error="it ran before", is_refusal=True, refuses_start=True, next_step="Adopt it.")
    adopting.end()
    view = adopting.adopt(is_stopped=True)
    assert (view.deployment_id, view.start.mode) == ("d-0002", "restore")
    assert adopting.control.spec("d-0001").start.mode == "restore", "it is for the query before its adoption"


def test_a_stream_that_ran_a_query_does_not_make_way(adopting: AdoptingStage) -> None:
    """Its state is its own, also where it failed."""
    adopting.deploy()
    adopting.come_to_life(queries=("counts",))
    adopting.say(Failed, error="boom")
    adopting.end()
    with pytest.raises(ConflictError, match="already has a stream"):
        adopting.adopt(is_stopped=True)
    assert adopting.control.need_register().value.retirement is None


def test_a_stream_whose_driver_may_still_start_does_not_make_way(adopting: AdoptingStage) -> None:
    """It is alive, and has not come to its first query."""
    adopting.deploy()
    adopting.come_to_life()
    with pytest.raises(ConflictError, match="can be retired"):
        adopting.adopt(is_stopped=True)
    assert adopting.barriers() == []
