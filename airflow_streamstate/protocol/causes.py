"""The cause of a failure in one line, from the reports of Python and Spark. For people; nothing is decided by it.

Spark's report of a failed query begins with ``STREAM_FAILED`` and ends with the whole logical plan; what the script
raised is in between.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

QUERY_REPORT = "=== Streaming Query ==="
AFTER_QUERY_REPORT = ("JVM stacktrace:", "Traceback (most recent call last)", "Caused by:")
_TRACEBACK = "Traceback (most recent call last):"
_JAVA_FRAME = re.compile(r"\s+(?:at [\w.$/<>]+\(|\.\.\. \d+ (?:more|common frames))")
_LEAD = re.compile(
    r"^.*?\[STREAM_FAILED\] Query \[[^]]*\] terminated with exception: ?"
    r"|^.*\(TID \d+\) \([^)]*\): "
    r"|^(?:__main__|pyspark\.errors\.exceptions\.(?:captured|base))\."
    r"|^(?:org|java)(?:\.\w+)*\.(?=\w+(?:Error|Exception)\b)"
)
_SQL_STATE = re.compile(r"\s*SQLSTATE: \w{5}\s*$")
_OF_JAVA = "Py4JJavaError: An error occurred while calling"
"""py4j puts what Java raised on the next line, after a colon."""


def cause_in(text: str) -> str:
    """The last line of the last Python traceback, else the first line of what was raised; "" for an empty text.

    Args:
        text: what was raised, with or without its traceback; secrets are hidden already.
    """
    lines = without_query_report(text).splitlines()
    return _bare(_last_of_traceback(lines) or _first(lines))


def cause_of(error: str, traceback: str) -> str:
    """The cause of an error whose traceback is stored apart from it, perhaps cut at its beginning."""
    found = _last_of_traceback(without_query_report(traceback).splitlines())
    return _bare(found) if found else cause_in(error)


def cause_of_failure(type_name: str, context: Mapping[str, object]) -> str:
    """The cause of one of our own errors, from its class and context; "" unless it is about a job that failed."""
    error, traceback = (str(context.get(name) or "") for name in ("error", "traceback"))
    return cause_of(error, traceback) if traceback or type_name == "DeploymentFailedError" else ""


def for_one_line(text: str) -> str:
    """The text for one line: a traceback in it becomes its cause, and Java's frames are left out."""
    text = without_query_report(text)
    lines = [line for line in text.splitlines() if not _JAVA_FRAME.match(line)]
    if _TRACEBACK not in text:
        return " ".join(" ".join(lines).split())
    head = " ".join("\n".join(lines).partition(_TRACEBACK)[0].split())
    cause = cause_in(text)
    return head if cause in head else f"{head} {cause}".strip()


def without_query_report(text: str) -> str:
    """The text without Spark's report of the query, which contains its whole logical plan."""
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
    """The line below the last traceback's frames; "" for none, or where the text was cut before it."""
    heads = [number for number, line in enumerate(lines) if _TRACEBACK in line]
    for head in reversed(heads):
        for number in range(head + 1, len(lines)):
            if lines[number].strip() and not lines[number].startswith((" ", "\t")):
                return _of_java(lines, number) or lines[number]
    return ""


def _of_java(lines: list[str], number: int) -> str:
    """What Java raised, where this line of py4j announces it; else ""."""
    behind = lines[number + 1] if number + 1 < len(lines) else ""
    return behind.removeprefix(": ") if _OF_JAVA in lines[number] and behind.startswith(": ") else ""


def _first(lines: list[str]) -> str:
    said = [line.strip() for line in lines if line.strip()]
    if not said:
        return ""
    if said[0].startswith('File "'):
        return said[-1]  # a SyntaxError begins with its place
    return _of_java(said, 0) or said[0]


def _bare(line: str) -> str:
    whole = line = line.strip()
    before = ""
    while line != before:
        before = line
        line = _SQL_STATE.sub("", _LEAD.sub("", line, count=1)).strip()
    return line or whole
