"""A deployment whose checkpoint is gone: nothing starts empty, nothing rolls back."""

from __future__ import annotations

from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.commands import StopRequest
from support.simulated_driver import STREAM, SimulatedStream, make_plan, waiting_script


def test_a_resumed_deployment_whose_checkpoint_is_gone_does_not_start_empty() -> None:
    """The next attempt is refused, and reads nothing from the beginning again. (Laws 5, 14)"""
    stream, plan = SimulatedStream(), make_plan(500)
    stream.deploy()
    stream.order_at(2.1, StopRequest)
    assert stream.run(waiting_script(plan)) == 0
    written = list(plan.sink.batches)
    folder = layout.checkpoint_folder(STREAM, "d-0001", "counts")
    for info in list(stream.checkpoints.list_objects(f"{folder}/")):
        stream.checkpoints.delete(info.key)
    number = stream.next_attempt()
    stream.order_at(2.1, StopRequest, attempt=number)
    assert stream.run(waiting_script(plan), attempt=number) != 0
    assert list(plan.sink.batches) == written
