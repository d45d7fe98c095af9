"""For a stream that is not there: those of the home that are called nearly so."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from contextlib import suppress

from airflow_streamstate.controller.home import Home, is_stream_id
from airflow_streamstate.errors import StreamNotFoundError, StreamStateError
from airflow_streamstate.protocol import layout

MOST_NAMES = 3
LEAST_ALIKE = 0.7


def name_nearby(error: StreamNotFoundError, open_home: Callable[[], Home]) -> None:
    """Say in the error's next step which streams may have been meant; it stays as it is where there is none.

    Args:
        error: names the stream as ``stream_id``.
        open_home: the home in which the stream was looked for; one that cannot be listed has no advice.
    """
    with suppress(StreamStateError):
        names = near_names(str(error.context.get("stream_id", "")), open_home())
        if names:
            error.next_step = f"Did you mean {' or '.join(names)}? {error.next_step}".strip()


def near_names(stream_id: str, home: Home) -> list[str]:
    """The streams whose names are most like this one, the nearest first.

    Raises:
        StreamStateError: the home cannot be listed.
    """
    names = [name for name in home.home.list_folders("") if is_stream_id(name) and name != stream_id]
    near = difflib.get_close_matches(stream_id, names, MOST_NAMES, LEAST_ALIKE)
    return [name for name in near if home.home.head(layout.register_key(name)) is not None]
