"""The trace of one life: every write at the stores and every call of a launcher, as text that is the same in each run.

Reads are left out. Of an object only the fields are shown that differ from what was written there before, or else from
the last object of its kind. Ids, digests and signatures are numbered by their first appearance, paths of this machine
have names.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from greenlet import getcurrent

from airflow_streamstate import __version__
from airflow_streamstate.errors import StreamStateError
from airflow_streamstate.store.base import ObjectInfo, Store, StoredObject

_UUID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")
_DIGEST = re.compile(r"\b[0-9a-f]{64}\b")
_LINE_NUMBER = re.compile(r'(\.py\\", line )\d+')
"""Of a traceback within JSON: it changes with each edit of the tests' own files."""
_SHORT_ID = re.compile(r"\b(?:[ru]-[0-9a-f]{12,32}|[0-9a-f]{32})(?=\b|-)")


@dataclass
class Trace:
    """What was written and launched in one life, in its order.

    Attributes:
        names: what is shown instead of a text that differs from machine to machine, longest first.
    """

    names: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    _before: dict[str, dict[str, Any]] = field(default_factory=dict)
    _numbers: dict[str, str] = field(default_factory=dict)

    def text(self) -> str:
        """All of it."""
        return "\n".join(self.lines) + "\n"

    def note(self, line: str) -> None:
        """One line."""
        self.lines.append(self._neutral(line))

    def wrote(self, call: str, where: str, body: bytes | None, error: StreamStateError | None = None) -> None:
        """One write; ``error``: why it was refused."""
        self.note(f"{_actor()}: {call} {where}" + ("" if error is None else f": {type(error).__name__}"))
        if body is not None and error is None:
            self._show(where, _parsed(body))
        elif call.startswith("delete") and error is None:
            self._before.pop(where, None)

    def launched(self, call: str, launch_key: str, request: Mapping[str, Any] | None = None) -> None:
        """One call of a launcher; ``request``: what is launched."""
        self.note(f"{_actor()}: launcher {call} {launch_key}")
        if request is not None:
            self._show(f"launch {launch_key}", request)

    def _show(self, where: str, now: Any) -> None:
        if not isinstance(now, dict):
            self.note(f"    {now}")
            return
        flat, kind = _flat(now), f"kind {now.get('kind', where.partition(' ')[0])}"
        alike = re.sub(r"\d+", "#", f"{kind} {where}")
        known = next((self._before[one] for one in (where, alike, kind) if one in self._before), {})
        self._before[where] = self._before[alike] = self._before[kind] = flat
        for path, value in sorted(flat.items()):
            if path not in known or known[path] != value:
                self.note(f"    {path} = {json.dumps(value, sort_keys=True)}")
        for path in sorted(set(known) - set(flat)):
            self.note(f"    {path} is not there")

    def _neutral(self, text: str) -> str:
        for own in sorted(self.names, key=len, reverse=True):
            text = text.replace(own, self.names[own])
        for pattern, name in ((_UUID, "id"), (_DIGEST, "digest"), (_SHORT_ID, "short")):
            text = pattern.sub(lambda found, name=name: self._number(found[0], name), text)
        text = _LINE_NUMBER.sub(r"\g<1><n>", text)
        return text.replace(__version__, "<version>")

    def _number(self, found: str, name: str) -> str:
        count = sum(one.startswith(f"<{name}-") for one in self._numbers.values())
        return self._numbers.setdefault(found, f"<{name}-{count + 1}>")


class TracedStore:
    """Any store, each write traced.

    Args:
        inner: the store that does the work.
        trace: where it is noted.
        name: of the store, before the keys; "" for the home.
    """

    def __init__(self, inner: Store, trace: Trace, name: str = "") -> None:
        self.inner = inner
        self._trace = trace
        self._name = name

    @property
    def uri(self) -> str:
        return self.inner.uri

    def get(self, key: str) -> StoredObject | None:
        return self.inner.get(key)

    def head(self, key: str) -> ObjectInfo | None:
        return self.inner.head(key)

    def list_objects(self, prefix: str) -> Iterator[ObjectInfo]:
        return self.inner.list_objects(prefix)

    def list_folders(self, folder: str) -> list[str]:
        return self.inner.list_folders(folder)

    def create(self, key: str, body: bytes) -> str:
        return self._write("create", key, body, lambda: self.inner.create(key, body))

    def replace(self, key: str, body: bytes, version: str) -> str:
        return self._write("replace", key, body, lambda: self.inner.replace(key, body, version))

    def put(self, key: str, body: bytes) -> str:
        return self._write("put", key, body, lambda: self.inner.put(key, body))

    def copy(self, source_key: str, target_key: str) -> None:
        self._write(f"copy {source_key} to", target_key, None, lambda: self.inner.copy(source_key, target_key))

    def link(self, source_key: str, target_key: str) -> bool:
        return self._write(f"link {source_key} to", target_key, None, lambda: self.inner.link(source_key, target_key))

    def delete(self, key: str, version: str | None = None) -> None:
        self._write("delete", key, None, lambda: self.inner.delete(key, version))

    def _write(self, call: str, key: str, body: bytes | None, act: Callable[[], Any]) -> Any:
        where = f"{self._name}:{key}" if self._name else key
        try:
            given = act()
        except StreamStateError as error:
            self._trace.wrote(call, where, body, error)
            raise
        self._trace.wrote(call, where, body)
        return given


def _actor() -> str:
    process = getattr(getcurrent(), "process", None)
    return threading.current_thread().name if process is None else str(process.name)


def _parsed(body: bytes) -> Any:
    """The object, where it is JSON, or else its lines, each of which may be JSON; of other bytes size and digest."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return f"{len(body)} bytes, {hashlib.sha256(body).hexdigest()}"
    whole = _json_or_text(text)
    if isinstance(whole, dict):
        return whole
    return {f"line {number}": _json_or_text(line) for number, line in enumerate(text.splitlines(), 1)}


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _flat(found: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values by their path; an empty object or list is a value."""
    values: dict[str, Any] = {}
    for name, value in found.items():
        path = f"{prefix}{name}"
        if isinstance(value, dict) and value:
            values |= _flat(value, f"{path}.")
        else:
            values[path] = value
    return values
