"""Files in memory for sink connectors, and a session that has settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

QUERY_ID = "3a9c3a0e-5b1c-4d4f-9f0f-0a4d2f3c1b11"


@dataclass
class DictReach:
    """Implements ``SinkReach``."""

    files: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    written: list[str] = field(default_factory=list)

    @property
    def session(self) -> Any:
        return self

    @property
    def conf(self) -> Any:
        return self.settings

    def names_in(self, folder: str) -> tuple[str, ...] | None:
        start = folder.rstrip("/") + "/"
        names = {name[len(start) :].partition("/")[0] for name in self.files if name.startswith(start)}
        return tuple(sorted(names)) or None

    def read_text(self, uri: str) -> str:
        return self.files[uri]

    def create_text(self, uri: str, text: str) -> None:
        self.written.append(uri)
        self.files.setdefault(uri, text)

    def delete(self, uri: str) -> None:
        self.files.pop(uri, None)

    def move(self, uri: str, to_uri: str) -> None:
        if uri in self.files:
            self.files[to_uri] = self.files.pop(uri)
