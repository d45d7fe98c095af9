"""The conformance suite on EMR Serverless, in the account of a person who has one: ``tox -e emr-live``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_streamstate.launch.conformance import PROMISES, Promise
from airflow_streamstate.launch.emr import EmrServerlessLauncher
from support.emr_stage import NEEDED, EmrStage

LACKING = [name for name in NEEDED if not os.environ.get(name)]
KEPT = [promise for promise in PROMISES if promise.__name__ not in EmrServerlessLauncher.limits]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[EmrStage]:
    """Drivers of one promise, below their own prefix."""
    stage = EmrStage(tmp_path)
    yield stage
    stage.close()


@pytest.mark.skipif(bool(LACKING), reason=f"needs an AWS account: set {', '.join(LACKING)}")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("promise", KEPT, ids=lambda promise: promise.__name__)
def test_emr_serverless_keeps_each_promise(stage: EmrStage, promise: Promise) -> None:
    """What EMR can promise at all; the launcher's ``limits`` state why not the others."""
    promise(stage)
