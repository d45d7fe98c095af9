"""The cause of a failure in one line, out of what Python and Spark report of it. Pure; for people, never for deciding.

Spark's report of a failed query begins with ``STREAM_FAILED`` and ends with the whole logical plan; what the script
itself raised stands somewhere in between.
"""

from __future__ import annotations

import re

QUERY_REPORT = "=== Streaming Query ==="
AFTER_QUERY_REPORT = ("JVM stacktrace:", "Traceback (most recent call last)", "Caused by:")
_TRACEBACK = "Traceback (most recent call last):"
_LEAD = re.compile(
    r"^.*?\[STREAM_FAILED\] Query \[[^]]*\] terminated with exception: ?"
    r"|^.*\(TID \d+\) \([^)]*\): "
    r"|^(?:__main__|pyspark\.errors\.exceptions\.(?:captured|base))\."
    r"|^(?:org|java)(?:\.\w+)*\.(?=\w+(?:Error|Exception)\b)"
)
_SQL_STATE = re.compile(r"\s*SQLSTATE: \w{5}\s*$")
_SOURCE_LINE = 'File "'


def cause_in(text: str) -> str:
    """What it came from: the last line of the last Python traceback, else the first line of what was raised.

    Args:
        text: what was raised, with its traceback or without one; secrets hidden.

    Returns:
        One line, without Spark's words around it; "" for an empty text.
    """
    lines = without_query_report(text).splitlines()
    line = _last_of_traceback(lines) or _first(lines)
    return _bare(line)


def cause_of(error: str, traceback: str) -> str:
    """The same of an error whose traceback is kept beside it, and perhaps was cut at its beginning."""
    found = _last_of_traceback(without_query_report(traceback).splitlines())
    return _bare(found) if found else cause_in(error)


def without_query_report(text: str) -> str:
    """The words without Spark's own report of the query, which ends in its whole logical plan; the log has that."""
    kept, is_report = [], False
    for line in text.splitlines():
        if line.strip() == QUERY_REPORT:
            is_report = True
        elif line.startswith(AFTER_QUERY_REPORT):
            is_report = False
        if not is_report:
            kept.append(line)
    return "\n".join(kept)


def _last_of_traceback(lines: list[str]) -> str:
    """The line below the frames of the last traceback; "" where there is none, or it was cut before that line."""
    heads = [number for number, line in enumerate(lines) if _TRACEBACK in line]
    for head in reversed(heads):
        for line in lines[head + 1 :]:
            if line.strip() and not line.startswith((" ", "\t")):
                return line
    return ""


def _first(lines: list[str]) -> str:
    said = [line.strip() for line in lines if line.strip()]
    if not said:
        return ""
    return said[-1] if said[0].startswith(_SOURCE_LINE) else said[0]  # a SyntaxError begins with its place


def _bare(line: str) -> str:
    whole = line = line.strip()
    before = ""
    while line != before:
        before = line
        line = _SQL_STATE.sub("", _LEAD.sub("", line, count=1)).strip()
    return line or whole
