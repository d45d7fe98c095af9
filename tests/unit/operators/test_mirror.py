"""``MirrorSnapshotsOperator``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_streamstate.operators.snapshot import MirrorSnapshotsOperator
from airflow_streamstate.snapshot.mirror_copies import is_mirrored
from airflow_streamstate.store.local import LocalStore
from support.airflow_fixtures import MakeContext
from support.airflow_streams import NamedHome
from support.snapshots import SNAPSHOT, STREAM, Shelf


def operator(**given: object) -> MirrorSnapshotsOperator:
    return MirrorSnapshotsOperator(task_id="mirror", stream_id=STREAM, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("as_text", [False, True])
def test_every_snapshot_is_copied_once(
    named: NamedHome, shelf: Shelf, context: MakeContext, tmp_path: Path, *, as_text: bool
) -> None:
    """A retry copies what is not there yet; fields come as text, too."""
    places = [str(tmp_path / "mirror")]
    given = {"mirrors": json.dumps(places) if as_text else places, "fetch_batch_bytes": "4096"}
    first = operator(**given).execute(context())
    assert [one["files"] > 0 for one in first["snapshots"]] == [True, True]
    assert set(first["snapshots"][0]) == {"snapshot_id", "mirror", "files", "bytes"}
    assert is_mirrored(shelf.control, LocalStore(tmp_path / "mirror"), SNAPSHOT)
    assert [one["files"] for one in operator(**given).execute(context())["snapshots"]] == [0, 0]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "this stream has no mirrors"),
        ({"mirrors": ["{base}/home"]}, "another place than the home"),
        ({"mirrors": ["{base}/m"], "fetch_batch_bytes": "few"}, "field=fetch_batch_bytes"),
        ({"mirrors": ["{base}/m"], "fetch_timeout_seconds": "99999"}, "fetch_timeout_seconds=99999"),
    ],
)
def test_mistakes_fail_for_good(
    named: NamedHome, shelf: Shelf, context: MakeContext, tmp_path: Path, given: dict[str, object], words: str
) -> None:
    """One sentence each."""
    if "mirrors" in given:
        given = {**given, "mirrors": [str(uri).format(base=tmp_path) for uri in given["mirrors"]]}  # type: ignore[attr-defined]
    with pytest.raises(AirflowFailException, match=words):
        operator(**given).execute(context())
