"""Why a driver ended, in one sentence, where Spark says it in a place or a way that nobody looks for.

Each line was seen on real Spark. It is a hint for people: nothing is ever decided by it (Law 13).
"""

from __future__ import annotations

import re

from airflow_streamstate.launch.processes import exit_sentence

_OUT_OF_HEAP = 52

_WORDS: tuple[tuple[str, str], ...] = (
    (r"JAVA_HOME is not set|(?:bin/java|java): (?:No such file|not found|command not found)", "no Java was found"),
    (r"Could not find valid SPARK_HOME|Failed to find Spark jars directory", "no complete Spark was found"),
    (r"spark-submit: (?:not found|No such file or directory)", "spark-submit was not found"),
    (r"UnsupportedClassVersionError", "its Java is older than Spark needs"),
    (
        r"Could not create the Java Virtual Machine|INVALID_DRIVER_MEMORY",
        "its JVM did not start with these memory settings",
    ),
    (r"OutOfMemoryError: Java heap space", "its JVM ran out of heap"),
    (r"unresolved dependency: (?P<detail>\S+?):? not found", "a package could not be resolved"),
    (r"All masters are unresponsive|Failed to connect to master (?P<detail>\S+)", "the master did not answer"),
    (r"Master must either be yarn or start with", "Spark does not know this kind of master"),
    (r"can't open file '?(?P<detail>[^':]+)", "the script was not there"),
    (r"java\.io\.FileNotFoundException: (?P<detail>\S+)", "a file was not there"),
    (r"No space left on device", "the disk was full"),
)


def reason_of_exit(exit_code: int, log_tail: str) -> str:
    """One lower-case sentence on this end; ``log_tail`` is looked at where the exit code alone says too little."""
    if exit_code == 0:
        return "it ended by itself"
    how = exit_sentence(exit_code)
    if exit_code == _OUT_OF_HEAP:
        return f"{how}: its JVM ran out of heap"
    if exit_code > 128:
        return how  # whoever sent the signal knows why; the log does not
    for pattern, words in _WORDS:
        match = re.search(pattern, log_tail)
        if match:
            detail = match.groupdict().get("detail")
            return f"{how}: {words}{f' ({detail})' if detail else ''}"
    return how
