"""A register that is gone is not a stream that never was."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_streamstate.control.stream import StreamControl, adoption_register, lost_register
from airflow_streamstate.errors import MalformedMessageError, StreamNotFoundError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.codec import from_bytes
from airflow_streamstate.protocol.ids import snapshot_id_for
from airflow_streamstate.protocol.records import Adoption, AdoptionStatus, DeploymentSpec, StartPlan, StreamRegister
from airflow_streamstate.store.memory import MemoryStore
from support.checkpoints import HookedStore
from support.examples import example
from support.scripted_stream import ScriptedStream

REGISTER = layout.register_key("flights")


@pytest.fixture
def stream() -> ScriptedStream:
    """Its second deployment ran twice; of the third there is nothing but its record."""
    stream = ScriptedStream(MemoryStore("home"), "memory:checkpoints")
    stream.deploy().claim()
    stream.deploy().claim()
    stream.resume().claim()
    stream.spec_alone()
    return stream


def test_what_is_shown_is_the_register_that_was_there(stream: ScriptedStream) -> None:
    """Of the newest deployment that started, at its last attempt; and no token is given out twice. (Law 4)"""
    control = stream.control
    before = control.need_register().value
    control.home.delete(REGISTER)
    with pytest.raises(MalformedMessageError, match="register of this stream is gone") as raised:
        control.need_register()
    assert "names d-0002 attempt 2" in raised.value.next_step
    shown = from_bytes(str(raised.value.context["register"]).encode(), key=REGISTER, expected=StreamRegister)
    assert (shown.deployment_id, shown.attempt) == (before.deployment_id, before.attempt) == ("d-0002", 2)
    assert shown.fencing_token == 3
    control.home.create(REGISTER, str(raised.value.context["register"]).encode())
    assert control.need_register().value == shown


def test_what_never_was_and_what_is_being_adopted_has_lost_nothing(stream: ScriptedStream) -> None:
    """Folders without a record were never started; an adoption records its deployment before its register."""
    home = MemoryStore("home")
    home.put(layout.event_key("flights", "d-0001", 1), b"{}")
    control = StreamControl(home, "flights", stream.clock)
    assert lost_register(control) is None
    with pytest.raises(StreamNotFoundError):
        control.need_register()
    home.put(layout.spec_key("flights", "d-0001"), b"{}")
    assert lost_register(control) is not None
    home.put(layout.adoption_key("flights"), b"{}")
    assert lost_register(control) is None


@pytest.mark.parametrize(("status", "has_lost"), [("open", False), ("taken", False), ("given_up", True)])
def test_what_came_behind_an_adoption_that_was_given_up_is_no_part_of_it(
    status: AdoptionStatus, has_lost: bool
) -> None:
    """The name was free: its one deployment is a separate stream's. What is being adopted is adopted once more."""
    begun = ScriptedStream(MemoryStore("home"), "memory:checkpoints").deploy()
    control = begun.control
    adoption_register(control).create(replace(example(Adoption), stream_id="flights", status=status))
    control.home.delete(REGISTER)
    assert (lost_register(control) is not None) == has_lost


def test_what_a_late_call_left_of_an_adoption_that_was_given_up_is_no_stream() -> None:
    """It woke up behind the end of its adoption: its deployment restores its own end (Laws 12 and 14)."""
    control = ScriptedStream(MemoryStore("home"), "memory:checkpoints").control
    adoption_register(control).create(replace(example(Adoption), stream_id="flights", status="given_up"))
    start = StartPlan("restore", snapshot_id_for("d-0001", "stopped", 1))
    control.create_spec(replace(example(DeploymentSpec), stream_id="flights", deployment_id="d-0001", start=start))
    assert lost_register(control) is None


def test_one_that_comes_to_be_meanwhile_has_lost_nothing(stream: ScriptedStream) -> None:
    """Its record was seen before its register, because that was looked for first."""
    home = HookedStore()
    begun = ScriptedStream(home, "memory:checkpoints", clock=stream.clock)
    begun.deploy()
    body = home.get(REGISTER)
    assert body is not None
    home.delete(REGISTER)

    def comes_to_be(verb: str, key: str) -> None:
        if (verb, key) == ("get", layout.adoption_key("flights")):
            home.create(REGISTER, body.body)

    home.after = comes_to_be
    assert begun.control.need_register().value.deployment_id == "d-0001"
