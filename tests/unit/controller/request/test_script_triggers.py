"""Triggers without a barrier, read from a script's text."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_streamstate.controller.request.requests import change_request
from airflow_streamstate.controller.request.scripts import CodeFile, modules_beside, refuse_triggers
from airflow_streamstate.errors import HomeNotFoundError, UnsupportedCheckpointError
from support.sim_stage import STREAM, Stage


def refuse(folder: Path, text: str, **modules: str) -> None:
    """The triggers of a script of this text and these modules next to it."""
    for name, of_module in modules.items():
        (folder / f"{name}.py").write_text(of_module)
    script = folder / "job.py"
    script.write_text(text)
    refuse_triggers(script, modules_beside(script))


@pytest.mark.parametrize(
    ("call", "trigger"),
    [
        ("trigger(continuous='1 second')", "continuous"),
        ("trigger(realTime='5 minutes')", "realTime"),
        ("trigger(continuous=interval)", "continuous"),
        ("trigger(processingTime=None, continuous='1 second')", "continuous"),
    ],
)
def test_a_call_that_can_mean_nothing_else_is_refused(tmp_path: Path, call: str, trigger: str) -> None:
    """Whatever its variables hold; the place is reported, and the next step."""
    with pytest.raises(UnsupportedCheckpointError, match=f"^the trigger {trigger} knows no barrier") as raised:
        refuse(tmp_path, f"writer = (\n    rows.writeStream\n    .{call}\n)\n")
    assert raised.value.context["place"] == "job.py, line 2"
    assert f"trigger(**{{'{trigger}': …}})" in str(raised.value)


@pytest.mark.parametrize(
    "call",
    [
        "trigger(availableNow=True)",
        "trigger(once=True)",
        "trigger(processingTime='1 second')",
        "trigger(**options)",
        "trigger(continuous=None, once=True)",
        "trigger(processingTime=steady, continuous=interval)",  # one of the two is None
        "other(continuous='1 second')",
    ],
)
def test_what_only_the_driver_can_know_is_let_pass(tmp_path: Path, call: str) -> None:
    """It refuses it at ``start()``."""
    refuse(tmp_path, f"writer.{call}.start()\n# .trigger(continuous='1 second')\n")


def test_the_scripts_own_modules_are_read_too(tmp_path: Path) -> None:
    """But for a function of a shared module that this script never names."""
    shared = "def quick(writer):\n    return writer.trigger(realTime='5 minutes')\n"
    refuse(tmp_path, "import shared\n", shared=shared)
    with pytest.raises(UnsupportedCheckpointError) as raised:
        refuse(tmp_path, "from shared import quick\n", shared=shared)
    assert raised.value.context["place"] == "shared.py, line 2"
    with pytest.raises(UnsupportedCheckpointError):
        refuse(tmp_path, "getattr(shared, 'quick')\nimport shared\n", shared=shared)
    with pytest.raises(UnsupportedCheckpointError):
        refuse(tmp_path, "import shared\n", shared=f"@registered\n{shared}")


def test_code_that_python_refuses_is_let_pass(tmp_path: Path) -> None:
    """Its driver reports what is wrong with it."""
    script = tmp_path / "job.py"
    script.write_text("writer.trigger(continuous='1 second'\n")
    refuse_triggers(script, [CodeFile("other.py", script)])


def test_no_driver_is_launched_and_nothing_is_recorded(stage: Stage) -> None:
    """Of a first version, and of a change (Law 10)."""
    text = "writer.trigger(continuous='1 second').start()\n"
    with pytest.raises(UnsupportedCheckpointError):
        stage.deploy(text)
    assert stage.launcher.requests == {}
    with pytest.raises(HomeNotFoundError):
        stage.controller.status(STREAM)
    stage.deploy()
    launched = list(stage.launcher.requests)
    with pytest.raises(UnsupportedCheckpointError):
        change_request(STREAM, application=stage.script(text, "v2.py"))
    assert list(stage.launcher.requests) == launched
    assert stage.seen().register.upgrade_id is None
