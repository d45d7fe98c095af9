"""A story of the stream-stream joins that ``shared_story`` does not have, over the input of ``spark_story``.

On both sides one row waits over the first chapter for another half that never comes, and one for a half that does.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from support import spark_story
from support.spark_story import rows_of_input

FIELDS = {"right": "kvw", "full": "kvw", "semi": "kv"}


def _joined(spark: Any, base: Path, how: str) -> Any:
    left = rows_of_input(spark, base).where("v in (1, 13, 31)").withWatermark("t", "10 seconds")
    right = rows_of_input(spark, base).where("v in (11, 19, 37)").withWatermark("t", "10 seconds")
    left, right = left.selectExpr("t", "k", "v"), right.selectExpr("t AS u", "k AS j", "v AS w")
    near = (right.u >= left.t) & (right.u <= left.t + spark_story.seconds(20))
    joined = left.join(right, (left.k == right.j) & near, how)
    return joined.select("k", "v") if how == "leftSemi" else joined.selectExpr("coalesce(k, j) AS k", "v", "w")


def queries(_provider: str) -> tuple[str, ...]:
    """The queries that live with a state store: all of them with each."""
    return tuple(PLANS)


PLANS: dict[str, Callable[[Any, Path], Any]] = {
    "right": lambda spark, base: _joined(spark, base, "rightOuter"),
    "full": lambda spark, base: _joined(spark, base, "fullOuter"),
    "semi": lambda spark, base: _joined(spark, base, "leftSemi"),
}
SETTINGS = {"spark.sql.ansi.enabled": "false"}
"""As ``shared_story`` has it."""
STATES = {
    "right": "stream_join RightOuter",
    "full": "stream_join FullOuter",
    "semi": "stream_join LeftSemi",
}
"""As ``spark_story`` has them."""


def check(rows_of: Callable[[str], list[tuple[Any, ...]]], lived: tuple[str, ...], chapters: int) -> None:
    """As ``spark_story.check``."""
    right: list[tuple[Any, ...]] = [("a", 13, 19), ("wait", None, 11)]
    left_alone: list[tuple[Any, ...]] = [("a", 1, None)]
    if chapters == 3:
        right += [("c", None, 37)]
        left_alone += [("a", 31, None)]
    wanted = {"right": right, "full": [*right, *left_alone], "semi": [("a", 13)]}
    for name in lived:
        assert rows_of(name) == sorted(wanted[name], key=repr), (name, rows_of(name), wanted[name])
