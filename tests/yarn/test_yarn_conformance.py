"""The suite for anybody's launcher, over drivers that are applications of a real YARN."""

from __future__ import annotations

import pytest

from airflow_streamstate.launch.conformance import (
    PROMISES,
    Promise,
    no_room_is_pending,
    one_key_is_one_driver,
    secrets_are_not_shown,
)
from airflow_streamstate.launch.yarn import YarnLauncher
from support.yarn_stage import YarnStage

pytestmark = [pytest.mark.timeout(900)]
ALWAYS = (no_room_is_pending, one_key_is_one_driver, secrets_are_not_shown)
"""What needs a real YARN most; the others run by name."""


@pytest.mark.parametrize(
    "promise",
    [
        pytest.param(promise, id=promise.__name__, marks=[pytest.mark.full if promise in ALWAYS else pytest.mark.named])
        for promise in PROMISES
        if promise.__name__ not in YarnLauncher.limits
    ],
)
def test_a_promise_is_kept_on_yarn(promise: Promise, stage: YarnStage) -> None:
    """What any launcher promises, by the ResourceManager's word and no more than that."""
    promise(stage)
