"""``StreamEventTrigger``: what happens to a stream becomes events of an asset."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from typing import Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.errors import InvalidRequestError, StreamNotFoundError, StreamStateError
from airflow_streamstate.protocol.events import STREAM_EVENT_KINDS, StreamCursor, StreamEvent
from airflow_streamstate.triggers.triggerer import controller_of, in_pool, watcher_of

_CURSOR = "streamstate_cursor"
_BEGINNING = StreamCursor("", 0, 0, has_ended=False)
SCHEDULER_SECONDS = 5.0
"""A scheduler has started the run of an event by then."""


class StreamEventTrigger(BaseEventTrigger):
    """For an ``AssetWatcher``: each event of a stream, in order, as ``StreamEvent.to_json``.

    Airflow 3.3 keeps the cursor with the asset, so that a triggerer that was away continues where it was. Where it was
    killed within seconds after an event, that event comes once more, with the same ``event_id``. Before Airflow 3.3 a
    triggerer reports only what happens after its start.

    The last of several events that are seen at once comes some seconds after the others. Airflow up to 3.3 starts a run
    with the first of them, and leaves those that come before that to the run of a later event (its issue 56050).

    A stream that is not there yet is waited for; its events come from its first deployment on.

    :param stream_id: the stream.
    :param streamstate_conn_id: the connection that names the home.
    :param kinds: only these kinds, see ``StreamEventKind``; None for all.
    :param poll_interval_seconds: seconds between two polls, where few triggers share the home.
    """

    def __init__(
        self,
        *,
        stream_id: str,
        streamstate_conn_id: str = "streamstate_default",
        kinds: Sequence[str] | None = None,
        poll_interval_seconds: float = 10.0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        unknown = sorted(set(kinds or ()) - set(STREAM_EVENT_KINDS))
        if unknown:
            raise InvalidRequestError(
                "there is no such kind of stream event",
                kind=unknown[0],
                next_step=f"There are {', '.join(STREAM_EVENT_KINDS)}.",
            )
        self.stream_id = stream_id
        self.streamstate_conn_id = streamstate_conn_id
        self.kinds = None if kinds is None else list(kinds)
        self.poll_interval_seconds = poll_interval_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            f"{StreamEventTrigger.__module__}.{StreamEventTrigger.__qualname__}",
            {
                "stream_id": self.stream_id,
                "streamstate_conn_id": self.streamstate_conn_id,
                "kinds": self.kinds,
                "poll_interval_seconds": self.poll_interval_seconds,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        controller = await controller_of(self.streamstate_conn_id)
        kept = cursor = await self._kept()
        said_at: float | None = None
        with watcher_of(controller).turn(self.stream_id, self.poll_interval_seconds) as turn:
            while True:
                # The events before this cursor were handed over a pause ago: the triggerer has recorded them.
                if cursor is not None and cursor != kept:
                    await self._keep(cursor)
                    kept = cursor
                turn.begin_look()
                found, cursor = await self._look(controller, cursor)
                asked = [one for one in found if self.kinds is None or one.kind in self.kinds]
                for event in asked:
                    if event is asked[-1] and said_at is not None:
                        await self._let_runs_begin(said_at + SCHEDULER_SECONDS)
                    yield TriggerEvent(event.to_json())  # type: ignore[no-untyped-call]
                    said_at = SYSTEM_CLOCK.monotonic_seconds()
                await turn.pause(math.inf)

    async def _let_runs_begin(self, until_seconds: float) -> None:
        """Pause until this monotonic second."""
        await asyncio.sleep(max(until_seconds - SYSTEM_CLOCK.monotonic_seconds(), 0.0))

    async def _look(
        self, controller: Controller, cursor: StreamCursor | None
    ) -> tuple[list[StreamEvent], StreamCursor | None]:
        try:
            if cursor is None:
                return [], await in_pool(controller, controller.stream_events.present, self.stream_id)
            return await in_pool(controller, controller.stream_events.since, self.stream_id, cursor)
        except StreamNotFoundError:
            return [], cursor or _BEGINNING
        except StreamStateError as error:
            self.log.warning("This poll went wrong, which shows nothing about the stream: %s", error)
            return [], cursor
        except Exception:
            self.log.exception("This poll of %s failed; the next one starts where it started", self.stream_id)
            return [], cursor

    async def _kept(self) -> StreamCursor | None:
        store = getattr(self, "asset_state_store", None)
        raw = None if store is None else await store.aget(_CURSOR)
        if raw is None:
            return None
        try:
            return StreamCursor.from_json(raw)
        except ValueError as problem:
            self.log.warning("The events start again with what happens now: %s", problem)
            return None

    async def _keep(self, cursor: StreamCursor) -> None:
        store = getattr(self, "asset_state_store", None)
        if store is not None:
            await store.aset(_CURSOR, cursor.to_json())
