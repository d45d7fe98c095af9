"""The cause of a failure in one line, out of what Spark 4.2 and Python report."""

from __future__ import annotations

import pytest

from airflow_streamstate.protocol.redaction import cause_in, cause_of

LEAD = "[STREAM_FAILED] Query [id = e7c7, runId = dbdd] terminated with exception: "
REPORT = """
=== Streaming Query ===
Identifier: [id = e7c7, runId = dbdd]
Logical Plan:
~WriteToMicroBatchDataSourceV1 ForeachBatchSink, e7c7, Append

JVM stacktrace:
org.apache.spark.sql.streaming.StreamingQueryException
\tat org.apache.spark.sql.execution.streaming.StreamExecution.runStream"""
PROXY = """[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred in the user provided function in foreach batch sink. \
Reason: An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "/spark/py4j/clientserver.py", line 644, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/launches/job.py", line 11, in fails
    raise Unlucky("batch of bad luck")
Unlucky: batch of bad luck
 SQLSTATE: 39000 SQLSTATE: XXKST"""
WORKER = """[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):
  File "/launches/job.py", line 14, in bad
    def bad(v): raise Unlucky("udf of bad luck")
                ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
__main__.Unlucky: udf of bad luck
 SQLSTATE: 38000 SQLSTATE: XXKST"""
INNER = """[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred. Reason: Traceback (most recent call last):
  File "/launches/job.py", line 19, in fails
    b.select(F.expr("raise_error('inner')")).collect()
pyspark.errors.exceptions.captured.SparkRuntimeException: [USER_RAISED_EXCEPTION] inner SQLSTATE: P0001
 SQLSTATE: 39000 SQLSTATE: XXKST"""
STAGE = """Job aborted due to stage failure: Task 0 in stage 3.0 failed 4 times, most recent failure: Lost task 0.3 in \
stage 3.0 (TID 7) (10.0.0.4 executor 1): org.apache.kafka.common.KafkaException: no broker
\tat org.apache.kafka.clients.consumer.KafkaConsumer.poll"""


def raised(words: str) -> str:
    """The traceback of a script whose wait raised this."""
    return (
        'Traceback (most recent call last):\n  File "/launches/job.py", line 30, in <module>\n'
        "    query.awaitTermination()\n"
        f"pyspark.errors.exceptions.captured.StreamingQueryException: {LEAD}{words}{REPORT}\n"
    )


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (PROXY, "Unlucky: batch of bad luck"),
        (WORKER, "Unlucky: udf of bad luck"),
        (INNER, "SparkRuntimeException: [USER_RAISED_EXCEPTION] inner"),
        ("[USER_RAISED_EXCEPTION] poison SQLSTATE: P0001 SQLSTATE: XXKST", "[USER_RAISED_EXCEPTION] poison"),
        (STAGE, "KafkaException: no broker"),
    ],
)
def test_the_cause_is_what_the_script_or_the_source_raised(words: str, cause: str) -> None:
    """Of Spark's own text, and of the traceback of a script whose wait raised it."""
    assert cause_in(LEAD + words + REPORT) == cause
    assert cause_in(raised(words)) == cause


def test_the_last_of_several_tracebacks_is_the_cause() -> None:
    """A script that raises its own error over that of the query: its own is what ended it."""
    text = raised(PROXY) + (
        "\nThe above exception was the direct cause of the following exception:\n\n"
        'Traceback (most recent call last):\n  File "/launches/job.py", line 33, in <module>\n'
        "    raise RuntimeError('gave up')\nRuntimeError: gave up\n"
    )
    assert cause_in(text) == "RuntimeError: gave up"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", ""),
        ("SystemExit: 7", "SystemExit: 7"),
        ("ValueError: first line\nsecond line", "ValueError: first line"),
        (
            'File "/launches/job.py", line 3\n    x =\n       ^\nSyntaxError: invalid syntax',
            "SyntaxError: invalid syntax",
        ),
        ("Traceback (most recent call last):\n  File 'cut", "Traceback (most recent call last):"),
        (LEAD, LEAD.strip()),
    ],
)
def test_other_texts_keep_their_first_line(text: str, cause: str) -> None:
    """An error without a traceback, a syntax error with its place before it, what was cut, and what shows nothing."""
    assert cause_in(text) == cause


JAVA = """[STREAM_FAILED] Query [id = 5b7b] terminated with exception: Reason: Traceback (most recent call last):
  File "/launches/job.py", line 12, in write
    batch.write.jdbc(url, "t")
py4j.protocol.Py4JJavaError: An error occurred while calling o57.jdbc.
: java.sql.SQLException: No suitable driver
\tat java.sql/java.sql.DriverManager.getDriver(DriverManager.java:298)
 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: x
"""


def test_the_cause_of_what_java_raised_is_javas() -> None:
    """py4j's own line reports only that something was called; what was raised is in the one behind it."""
    assert cause_in(JAVA) == "SQLException: No suitable driver"
    assert cause_of(JAVA[:200], JAVA) == "SQLException: No suitable driver"
    assert cause_in(JAVA[JAVA.index("py4j") :]) == "SQLException: No suitable driver"


def test_what_java_raised_may_be_missing() -> None:
    """Cut right behind py4j's line."""
    cut = JAVA[: JAVA.index("\n: java")]
    assert cause_in(cut).endswith("Py4JJavaError: An error occurred while calling o57.jdbc.")
