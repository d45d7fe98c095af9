"""Spark's own words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("py4j")

from airflow_streamstate.driver.spark.jvm import MAX_CAUSES, spark_words


@dataclass
class Class:
    name: str

    def getSimpleName(self) -> str:
        return self.name


@dataclass
class Throwable:
    """As py4j shows one of the JVM's."""

    name: str
    message: str | None
    cause: Any = None

    def getCause(self) -> Any:
        return self.cause

    def getMessage(self) -> str | None:
        return self.message

    def getClass(self) -> Class:
        return Class(self.name)


class CapturedError(Exception):
    """As pyspark captures one."""

    def __init__(self, message: str, origin: Throwable | None = None) -> None:
        super().__init__(message)
        self._origin = origin


def test_the_cause_speaks_by_its_error_class() -> None:
    """The plan and the offsets around it are left out."""
    cause = Throwable(
        "StateStoreKeySchemaNotCompatible", "[STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE] Provided key …\nlong"
    )
    error = CapturedError("[STREAM_FAILED] …", Throwable("StreamingQueryException", "[STREAM_FAILED] …", cause))
    assert spark_words(error) == "[STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE] Provided key …"


def test_what_has_no_error_class_is_named_by_its_type() -> None:
    """As of an assertion in Spark, or of anything in Python."""
    error = CapturedError("…", Throwable("AssertionError", "assertion failed: There are [1] sources"))
    assert spark_words(error) == "AssertionError: assertion failed: There are [1] sources"
    assert spark_words(ValueError("first\nsecond")) == "ValueError: first"
    assert spark_words(KeyError()) == "KeyError"
    assert spark_words(CapturedError("", Throwable("NullPointerException", None))) == "NullPointerException"


def test_causes_that_go_in_circles_come_to_an_end() -> None:
    """Java forbids a cause of itself, and not one of two."""
    first = Throwable("A", "a")
    second = Throwable("B", "b", first)
    first.cause = second
    assert MAX_CAUSES < 100
    assert spark_words(CapturedError("…", first)) in ("A: a", "B: b")
