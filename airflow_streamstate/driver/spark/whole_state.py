"""A seed's empty batch writes its state as a whole, never as a changelog, whatever the script's session says."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

CHANGELOG_SETTING = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"


@contextlib.contextmanager
def whole_state(jsession: Any) -> Iterator[None]:
    """While a query is being started, this session has changelog checkpointing switched off.

    A changelog of version 1 cannot be moved to version N + 1: Spark would want those of all versions below. A query
    copies its session's settings when it starts, so that only this one sees it; others start under the same lock.

    Args:
        jsession: the JVM session of the data frame that is started.
    """
    conf = jsession.conf()
    # Spark's RocksDB takes its settings in any case of letters, and of two spellings either may win.
    spelled = [str(key) for key in conf.getAll().keys().toSeq().mkString("\n").split("\n")]
    before = {key: str(conf.get(key)) for key in spelled if key.lower() == CHANGELOG_SETTING.lower()}
    for key in before:
        conf.set(key, "false")
    try:
        yield
    finally:
        for key, value in before.items():
            conf.set(key, value)
