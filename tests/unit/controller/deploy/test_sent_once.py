"""No start continues from offsets of a source that cannot be read again, unless the query is named."""

from __future__ import annotations

import pytest

from airflow_streamstate.controller.observe.lineage import lineage_of
from airflow_streamstate.errors import InputLostError
from airflow_streamstate.protocol.events import Stopped
from airflow_streamstate.protocol.positions import SourceIdentity
from support.sim_stage import STREAM, Stage

SOCKET = SourceIdentity("socket", "socket 127.0.0.1:9999")


def stopped(stage: Stage, identity: SourceIdentity = SOCKET) -> str:
    """A stream that reads this source, and was stopped behind batch 3; the snapshot at its end."""
    stage.deploy()
    stage.come_to_life(queries=("counts",))
    stage.run_batches(3)
    manifest = stage.keep("stopped", identities=(identity,))
    positions = {name: query.position for name, query in manifest.queries.items()}
    stage.say(Stopped, snapshot_id=manifest.snapshot_id, queries=positions)
    stage.end()
    return manifest.snapshot_id


def test_a_restore_from_a_socket_is_refused_before_anything_is_done(stage: Stage) -> None:
    """The error names the source and why; the stream is unchanged (Law 5)."""
    snapshot_id = stopped(stage)
    with pytest.raises(InputLostError, match="cannot be read again") as caught:
        stage.deploy("print('v2')\n")
    assert caught.value.context["snapshot_id"] == snapshot_id
    assert "--accept-lost-input counts" in caught.value.next_step
    assert stage.control.need_register().value.deployment_id == "d-0001"
    assert stage.control.deployment_ids() == ["d-0001"]


def test_it_is_done_where_it_is_accepted(stage: Stage) -> None:
    """A note reports what is lost by it."""
    stopped(stage)
    with pytest.raises(InputLostError):
        stage.deploy("print('v2')\n", accept_lost_input=("another",))
    view = stage.deploy("print('v2')\n", accept_lost_input=("counts",))
    assert [note for note in view.notes if "sends each row once" in note and "as was accepted" in note]
    assert view.start.accept_lost_input == ("counts",)
    assert lineage_of(stage.home, STREAM).sent_once == (), "its events name no socket"


@pytest.mark.parametrize(
    ("identity", "start", "mode"), [(SOCKET, "fresh", "fresh"), (SourceIdentity("file", "file /in"), None, "restore")]
)
def test_other_starts_and_other_sources_are_not_asked(
    stage: Stage, identity: SourceIdentity, start: str | None, mode: str
) -> None:
    """A fresh start continues from no offset; files are read again."""
    stopped(stage, identity)
    assert stage.deploy("print('v2')\n", start=start).start.mode == mode
