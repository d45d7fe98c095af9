"""The verbs as the shell and Airflow see them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import get_args

import pytest

from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.observe.pending_orders import OrderVerb
from airflow_streamstate.controller.wait.condition import Wanted
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.launch.interface import LOCAL
from airflow_streamstate.launch.local import LocalLauncher
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import Finished
from support.sim_stage import STREAM, Stage


def test_the_local_controller_launches_on_this_machine(stage: Stage) -> None:
    """``Controller.local`` is what the shell uses; a version may name another launcher."""
    controller = Controller.local(stage.home, clock=stage.clock, requested_by="me")
    assert isinstance(controller._context.launcher.named(LOCAL), LocalLauncher)
    assert controller._context.requested_by == "me"


def test_running_the_same_code_is_known(stage: Stage) -> None:
    """A scheduled upgrade does nothing where code, arguments and configuration run already. (Law 15)"""
    request = stage.request("print(1)\n")
    assert not stage.controller.running_same_code(request)
    stage.controller.deploy(request)
    assert stage.controller.running_same_code(stage.request("print(1)\n"))
    assert not stage.controller.running_same_code(stage.request("print(1)\n", arguments=("x",)))
    stage.stopped()
    assert not stage.controller.running_same_code(stage.request("print(1)\n"))


@pytest.mark.parametrize(("trigger", "runs"), [("available_now", True), ("once", True), ("default", False)])
def test_between_two_runs_the_same_code_runs(stage: Stage, trigger: str, runs: bool) -> None:
    """A scheduled upgrade is no extra run of a scheduled job; a new version of it needs an upgrade."""
    stage.deploy("print(1)\n")
    stage.come_to_life()
    stage.start_query(trigger=trigger)
    stage.say(Finished, snapshot_id=None, queries={})
    stage.end()
    assert stage.controller.status(STREAM).state == "finished"
    assert stage.controller.running_same_code(stage.request("print(1)\n")) is runs
    assert not stage.controller.running_same_code(stage.request("print(2)\n"))


def test_logs_are_read_from_this_machine_without_secrets(stage: Stage, tmp_path: Path) -> None:
    """``logs`` shows what the driver wrote, and hides the secrets of its configuration."""
    stage.deploy(conf={"spark.a.secret": "hunter2-hunter2"}, allow_literal_secrets=True)
    assert stage.controller.logs(STREAM) == ""
    log = Path(stage.launcher.requests["d-0001-a0001"].log_path)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("one\ntwo hunter2-hunter2\n")
    stage.launcher.log_paths["d-0001-a0001"] = str(log)
    stage.store.delete(layout.launch_record_key(STREAM, "d-0001", "d-0001-a0001"))
    controller = stage.another_controller()  # it has not read that record
    assert controller.logs(STREAM) == "one\ntwo ***\n"
    assert controller.logs(STREAM, attempt=2) == ""
    reader = controller.log_reader(STREAM)
    assert reader.read_new() == "one\ntwo ***\n"
    assert not reader.has_ended()
    stage.end()
    assert reader.has_ended()


def test_a_hostile_request_id_is_refused(stage: Stage) -> None:
    """Request ids become keys: what cannot be one is refused by every verb."""
    stage.deploy()
    orders = (partial(stage.controller.order, verb) for verb in get_args(OrderVerb))
    for verb in (*orders, stage.controller.resume):
        with pytest.raises(InvalidRequestError, match="request id"):
            verb(STREAM, request_id="../x")


def test_one_table_says_how_each_condition_is_looked_at(stage: Stage) -> None:
    """A trigger of any release carries one of these words; a snapshot that was requested has its own poll."""
    assert set(stage.controller._waits.looks) == {*get_args(Wanted), "snapshot request"}
