"""Scratch runs: one record for each kind of run."""

from __future__ import annotations

import pytest

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.scratch import Reading, Rehearsal, Replay, ScratchRun
from support.examples import RUNS, example


def test_a_run_of_another_kind_is_not_taken_for_what_was_asked_for() -> None:
    """A user names a run by its id, which is the same for all kinds."""
    rehearsal = example(ScratchRun)
    assert isinstance(rehearsal, ScratchRun)
    replay, reading = RUNS
    assert (rehearsal.rehearsal, replay.replay) == (rehearsal.what, replay.what)
    for run in (replay, reading):
        with pytest.raises(InvalidRequestError, match="this scratch run is no rehearsal"):
            assert run.rehearsal
    with pytest.raises(InvalidRequestError, match="this scratch run is no replay"):
        assert rehearsal.replay


def test_nothing_stays_of_a_reading() -> None:
    """Its answer holds rows of the state; of the others the verdict stays."""
    assert [kind.keeps_verdict for kind in (Rehearsal, Replay, Reading)] == [True, True, False]
