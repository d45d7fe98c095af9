"""The base of all events, and what else of the package reads an event: each says it of itself.

What waits for an end, the page's timeline, the events of a stream and the table of the docs follow from it. A new event
is a class in ``events`` or ``data_events``, and the code that reports it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, ClassVar

from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.codec import Message
from airflow_streamstate.protocol.fields import Attempt, DeploymentId, StreamId
from airflow_streamstate.protocol.stream_events import StreamEventKind

StreamFact = tuple[StreamEventKind, str, Mapping[str, Any]]
"""Of one event of a stream: its kind, its text for people, and its facts for programs."""


@dataclass(frozen=True)
class Event(Message):
    """A fact from a deployment: ``attempt`` reported it, ``write_id`` is unique per write (Law 8).

    Attributes:
        is_terminal: of its class: it is the last one of an attempt.
        mark: of its class: the word for its mark on the page's timeline; "" for no mark.
    """

    is_terminal: ClassVar[bool] = False
    mark: ClassVar[str] = ""

    stream_id: StreamId
    deployment_id: DeploymentId
    attempt: Attempt
    at: datetime
    write_id: str

    def stream_facts(self, _order: str) -> Iterator[StreamFact]:
        """What it means for its stream as a whole, for people and DAGs; nothing by default.

        Args:
            order: who ordered it, and why: ``by ada: the broker is moved``; "" where no command did.
        """
        yield from ()
