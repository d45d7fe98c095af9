"""What is left of Spark's words for a person."""

from __future__ import annotations

from airflow_streamstate.cli.render import is_told_by, without_launch_folder
from airflow_streamstate.protocol.causes import without_query_report

WORDS = """[STREAM_FAILED] Query [id = 1] terminated with exception: [USER_RAISED_EXCEPTION] poison SQLSTATE: P0001
=== Streaming Query ===
Identifier: delays [id = 1]
Current Committed Offsets: {}

Logical Plan:
~WriteToMicroBatchDataSourceV1 FileSink
+- ~Project"""


def test_the_plan_is_left_out_and_the_reason_is_not() -> None:
    """Of the message, and of a traceback that has it in its middle."""
    reason = WORDS.splitlines()[0]
    assert without_query_report(WORDS) == reason
    trace = "Traceback (most recent call last):\n  line 60\n" + WORDS + "\n\nJVM stacktrace:\nat org.apache"
    assert without_query_report(trace).splitlines() == [
        "Traceback (most recent call last):",
        "  line 60",
        reason,
        "JVM stacktrace:",
        "at org.apache",
    ]


def test_what_is_no_such_report_stays_as_it_is() -> None:
    """Every line of it."""
    assert without_query_report("ValueError: a\nb") == "ValueError: a\nb"
    assert without_query_report("") == ""


def test_the_folder_of_a_launch_or_a_rehearsal_is_left_out() -> None:
    """The script was pinned there for one launch, and is pruned; its name is what a person knows."""
    key = "s/rehearsals/r-0b8e3c525f0e-0001/launches/r-0b8e3c525f0e-0001-a0001"
    for folder in ("/home", "/my home"):
        text = f'  File "{folder}/{key}/code/job.py", line 3, in <module>\n  File "{folder}/lib/rules.py", line 1'
        assert without_launch_folder(text) == (
            f'  File "job.py", line 3, in <module>\n  File "{folder}/lib/rules.py", line 1'
        )
    assert without_launch_folder(f"cannot import rules from {'/home/' + key}/code/py-files/rules.py") == (
        "cannot import rules from rules.py"
    )
    assert without_launch_folder(f"see /home/{key}/driver.log") == f"see /home/{key}/driver.log"


def test_a_log_that_ends_with_the_traceback_tells_nothing_new() -> None:
    """Python prints it there, too; a log that ends with anything else is worth reading."""
    trace = "Traceback (most recent call last):\n  line 60\nValueError: boom\n\n"
    assert is_told_by(trace, f"WARN something\n{trace}")
    assert not is_told_by(trace, "java.lang.OutOfMemoryError")
    assert not is_told_by("", "ValueError: boom")
    assert not is_told_by(None, "ValueError: boom")
