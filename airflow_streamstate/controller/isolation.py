"""One odd object never hides the other streams: the error of a look at one stream, as it is shown beside the others."""

from __future__ import annotations

import traceback
from pathlib import Path

from airflow_streamstate.controller.home import Home
from airflow_streamstate.errors import DataError, StreamStateError


def of_one_stream(home: Home, error: Exception) -> StreamStateError:
    """The error as that of one stream, which hides no other one.

    Raises:
        StreamStateError: it is the home that is not there, or does not answer.
    """
    if not isinstance(error, StreamStateError):
        return DataError(
            "what is recorded of this stream cannot be understood",
            reason=unexpected(error),
            next_step="Report this with the records of the stream; `streamstate status` of it shows the same.",
        )
    if not isinstance(error, DataError):
        home.presence.need()
    return error


def unexpected(error: Exception) -> str:
    """The type of an error that is none of ours, with the line where it was raised, for a report."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"unexpected {type(error).__name__}{where}"
