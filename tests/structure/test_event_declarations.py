"""An event is declared in one place: what it means for its stream, its mark on the page, its line in the docs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.scratch_copy import ScratchCopy

pytestmark = pytest.mark.fast

EVENTS = "airflow_streamstate/protocol/events.py"
NEW = '''@message
@dataclass(frozen=True)
class Paused(Event):
    """Every query waits, since a source asked for it."""

    mark: ClassVar[str] = "paused"

    snapshot_id: SnapshotId

    def stream_facts(self, _order: str) -> Iterator[StreamFact]:
        yield "stopped", f"its queries wait at {self.snapshot_id}", {"snapshot_id": self.snapshot_id}


'''
ASKED = """
import json
from datetime import UTC, datetime
from airflow_streamstate.page.content import _mark
from airflow_streamstate.protocol.codec import from_bytes, to_bytes
from airflow_streamstate.protocol.events import ALL_EVENTS, TERMINAL_EVENTS, Paused

event = Paused("s", "d-0001", 1, datetime(2026, 3, 1, tzinfo=UTC), "w", snapshot_id="d-0001-live-000001")

print(json.dumps({
    "is_read": from_bytes(to_bytes(event), key="k", expected=ALL_EVENTS) == event,
    "is_terminal": Paused in TERMINAL_EVENTS,
    "mark": (_mark(event) or {}).get("word"),
    "stream_facts": list(event.stream_facts("")),
}))
"""


def test_a_new_event_is_one_class(tmp_path: Path) -> None:
    """In a scratch copy one file is edited by hand: journals, stream events, the page and the docs have the event."""
    copy = ScratchCopy(tmp_path)
    copy.insert(EVENTS, NEW, before="ALL_EVENTS: tuple[")
    assert copy.changed() == [EVENTS]
    copy.run("docs/refresh.py")
    found = json.loads(copy.run("-c", ASKED).splitlines()[-1])
    assert found == {
        "is_read": True,
        "is_terminal": False,
        "mark": "paused",
        "stream_facts": [["stopped", "its queries wait at d-0001-live-000001", {"snapshot_id": "d-0001-live-000001"}]],
    }
    assert copy.changed() == [EVENTS, "docs/reference/protocol.md"]
    page = (tmp_path / "docs" / "reference" / "protocol.md").read_text(encoding="utf-8")
    assert "| `Paused` | Every query waits, since a source asked for it. |" in page
