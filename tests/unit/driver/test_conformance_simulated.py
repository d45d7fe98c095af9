"""The simulated query does what real Spark does: the same steps as ``tests/spark/test_conformance.py``."""

from __future__ import annotations

import pytest

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.store.memory import MemoryStore
from support.acting_clock import ActingClock
from support.conformance import (
    BASE_SECONDS,
    DELAY_SECONDS,
    ROWS_PER_BATCH,
    STEPS,
    WINDOW_SECONDS,
    Step,
)
from support.simulated_query import Phase, QueryDiedError, SimulatedPlan, SimulatedRun, SimulatedStartable
from support.simulated_sources import SimulatedSink, SimulatedSource


class SimulatedStage:
    """A query without Spark, in time that passes only in sleeps."""

    def __init__(self) -> None:
        self.clock = ActingClock()
        store = MemoryStore()
        self._source = SimulatedSource(max_rows_per_batch=ROWS_PER_BATCH)
        self._sink = SimulatedSink()
        plan = SimulatedPlan(
            [self._source],
            self._sink,
            window_ms=WINDOW_SECONDS * 1000,
            delay_ms=DELAY_SECONDS * 1000,
            batch_seconds=0.1,
        )
        self.startable = SimulatedStartable(store, self.clock, plan)
        self.startable.before_phase = self._before
        self.uri = "orders/deployments/d-0001/checkpoints/counts"
        self.checkpoint = Checkpoint(store, self.uri)
        self._holds = False
        self._spoils = False

    def _before(self, run: SimulatedRun, phase: Phase) -> None:
        if phase != "run":
            return
        if self._holds:
            run.pause(0.01)
        elif self._spoils:
            raise QueryDiedError("the input is spoilt")

    def feed(self, first_second: int, second_second: int) -> None:
        self._source.add(*((BASE_SECONDS + second) * 1000 for second in (first_second, second_second)))

    def counts(self) -> dict[int, int]:
        return {start // 1000 - BASE_SECONDS: count for start, count in self._sink.counts().items()}

    def hold(self) -> None:
        self._holds = True

    def let_go(self) -> None:
        self._holds = False

    def spoil(self) -> None:
        self._spoils = True

    def mend(self) -> None:
        self._spoils = False


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_the_simulated_query_does_what_spark_does(step: Step) -> None:
    """Nothing is built on a simulation that is kinder than Spark."""
    step(SimulatedStage())
