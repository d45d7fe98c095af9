"""The texts of drivers' ends."""

from __future__ import annotations

import pytest

from airflow_streamstate.launch.local import reason_of_exit


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("JAVA_HOME is not set", "no Java was found"),
        ("spark-class: line 97: /opt/java/bin/java: No such file or directory", "no Java was found"),
        ("Could not find valid SPARK_HOME while searching ['/usr']", "no complete Spark was found"),
        ("Error: Could not create the Java Virtual Machine.", "memory settings"),
        ("[INVALID_DRIVER_MEMORY] System memory 200 must be at least 471859200.", "memory settings"),
        (
            "::          UNRESOLVED\n[unresolved dependency: g#a;1: not found]",
            "a package could not be resolved (g#a;1)",
        ),
        ("Failed to connect to master 127.0.0.1:7077", "the master did not answer (127.0.0.1:7077)"),
        ("python: can't open file '/x/job.py': [Errno 2]", "the script was not there (/x/job.py)"),
        ("java.io.FileNotFoundException: /x/more.zip does not exist", "a file was not there (/x/more.zip)"),
    ],
)
def test_what_spark_hides_is_said_in_one_sentence(log: str, words: str) -> None:
    """What a driver's log has somewhere in its middle becomes the reason of its end."""
    assert words in reason_of_exit(1, f"INFO before\n{log}\nINFO after")


def test_an_exit_code_says_it_alone() -> None:
    """Success, the heap and signals need no log, and are not explained by what happens to be in it."""
    log = "JAVA_HOME is not set"
    assert reason_of_exit(0, log) == "it ended by itself"
    assert reason_of_exit(52, "") == "it ended with exit status 52: its JVM ran out of heap"
    assert reason_of_exit(137, log) == "it was ended by SIGKILL (exit status 137)"
    assert reason_of_exit(1, "nothing known") == "it ended with exit status 1"
