"""A Delta table by its own log, read without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class DeltaFolder:
    """A table that is only ever appended to.

    Args:
        path: of the table, there or not.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def _versions(self) -> list[list[dict[str, Any]]]:
        """The actions of each version, in order."""
        logs = sorted(path for path in (self._path / "_delta_log").glob("*.json") if path.stem.isdigit())
        return [[json.loads(line) for line in log.read_text().splitlines()] for log in logs]

    def commits(self) -> list[dict[str, int]]:
        """Of each version: query id -> batch id."""
        return [
            {action["txn"]["appId"]: action["txn"]["version"] for action in actions if "txn" in action}
            for actions in self._versions()
        ]

    def query_ids(self) -> list[str]:
        """Of each version that a query has written."""
        return [query_id for commit in self.commits() for query_id in commit]

    def rows(self) -> int:
        """How many rows were added."""
        adds = [action["add"] for actions in self._versions() for action in actions if "add" in action]
        return sum(int(json.loads(add["stats"])["numRecords"]) for add in adds)
