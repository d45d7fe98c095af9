"""What the steps of an upgrade are taken with."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_streamstate.controller.deploy.start_plan import UsedError
from airflow_streamstate.controller.upgrade.steps import LATE, describe_error, is_passing
from airflow_streamstate.errors import (
    ConflictError,
    InvalidRequestError,
    OutcomeUnknownError,
    StreamStateError,
    UnavailableError,
)
from airflow_streamstate.protocol.settings import COMMAND_POLL_SECONDS_ON_S3
from support.sim_stage import STREAM
from support.upgrade_stage import UpgradeStage


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (UnavailableError("no answer"), True),
        (OutcomeUnknownError("no reply"), True),
        (ConflictError("another controller"), False),
        (InvalidRequestError("cannot be"), False),
    ],
)
def test_only_silence_and_unknown_outcomes_may_pass(error: StreamStateError, *, expected: bool) -> None:
    """All else is an answer."""
    assert is_passing(error) is expected


def test_an_error_is_one_line_of_a_step() -> None:
    """However long it is."""
    assert describe_error(ConflictError("a\nb", tail="x\n" * 3_000)).count("\n") == 0
    assert len(describe_error(ConflictError("a\nb", tail="x\n" * 3_000))) <= 1_000


def test_each_act_has_one_request_id(upgraded: UpgradeStage) -> None:
    """The same at every retry, by any controller (Law 2)."""
    view = upgraded.begin()
    tools, _ = upgraded.upgrades._tools(STREAM, view.upgrade_id)
    others, _ = upgraded.stage.another_controller().upgrades._tools(STREAM, view.upgrade_id)
    assert tools.request_id("new") == others.request_id("new") == f"{view.upgrade_id}-new"


def test_law_5_only_mode_fresh_starts_with_nothing(upgraded: UpgradeStage) -> None:
    """Only the terms of the target ask for it, in its rehearsal and in its deployment."""
    view = upgraded.begin()
    tools, _ = upgraded.upgrades._tools(STREAM, view.upgrade_id)
    starts = {mode: tools.target(mode).terms.start for mode in ("auto", "restore", "drain", "fresh", None)}  # type: ignore[arg-type]
    assert starts == {"auto": None, "restore": None, "drain": None, "fresh": "fresh", None: None}


def test_the_target_is_a_version_of_its_own(upgraded: UpgradeStage) -> None:
    """The record of the upgrade has it, its files pinned; no deployment does before the handover."""
    view = upgraded.begin()
    tools, _ = upgraded.upgrades._tools(STREAM, view.upgrade_id)
    target = tools.target("restore")
    assert (target.version, target.patch) == (view.state.upgrade.target, None)
    assert target.version.application != tools.old_version().application


def test_the_end_of_the_old_version_is_seen_soon(upgraded: UpgradeStage) -> None:
    """While its end is awaited the stream may be stopped: looked for at once, then by a share of what was waited, and
    never more seldom than ever."""
    view = upgraded.begin()
    tools, state = upgraded.upgrades._tools(STREAM, view.upgrade_id)
    spec = upgraded.stage.spec()
    settings = replace(spec.version.settings, command_poll_seconds=COMMAND_POLL_SECONDS_ON_S3)
    spec = replace(spec, version=replace(spec.version, settings=settings))
    pauses = []
    for waited_seconds in (0.0, 10.0, 3_600.0):
        since = tools.context.clock.now() - timedelta(seconds=waited_seconds)
        pauses.append(tools.handover_pause_seconds(replace(state, phase_since=since), spec))
    assert pauses == [0.05, pytest.approx(0.5), 2.0]


@pytest.mark.parametrize(
    ("waited_seconds", "error", "fails", "tries"),
    [
        (0.0, ConflictError("another controller"), 2, 1),
        (59.9, ConflictError("another controller"), 2, 1),
        (60.0, ConflictError("another controller"), 2, 3),
        (4_000.0, ConflictError("another controller"), 2, 3),
        (60.0, ConflictError("another controller"), 99, LATE.tries),
        (60.0, UsedError("it ran a batch"), 99, 1),
    ],
)
def test_a_late_worker_retries_a_conflict_itself(
    upgraded: UpgradeStage, waited_seconds: float, error: ConflictError, fails: int, tries: int
) -> None:
    """An early one is called again anyway; a conflict that lasts, or that cannot pass, is raised."""
    tools, state = upgraded.upgrades._tools(STREAM, upgraded.begin().upgrade_id)
    upgraded.stage.clock.advance(waited_seconds)
    made = 0

    def act() -> str:
        nonlocal made
        made += 1
        if made <= fails:
            raise error
        return "done"

    if tries > fails:
        assert tools.patiently(state, 60.0, act) == "done"
    else:
        with pytest.raises(type(error)):
            tools.patiently(state, 60.0, act)
    assert made == tries
