"""Refuses Spark Connect, whose classes would start queries past the interception. Imports no pyspark."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from airflow_streamstate.errors import InvalidRequestError

WRITER_MODULE = "pyspark.sql.connect.streaming.readwriter"
_SWITCHES = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_LOCAL_REMOTE")


def refuse_connect_environment(environment: Mapping[str, str]) -> None:
    """Refuse an environment that makes every session a Connect session, whose queries cannot be intercepted.

    Raises:
        InvalidRequestError: it does.
    """
    found = [name for name in _SWITCHES if environment.get(name)]
    if environment.get("SPARK_API_MODE", "").lower() == "connect":
        found.append("SPARK_API_MODE")
    if found:
        raise _refusal(set_by=found)


def refuse_connect_writers() -> None:
    """Make ``start`` and ``toTable`` of Connect's writer refuse, now or as soon as a script imports it."""
    module = sys.modules.get(WRITER_MODULE)
    if module is not None:
        _refuse_in(module)
    elif not any(isinstance(finder, _RefusingFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _RefusingFinder())


class _RefusingFinder(importlib.abc.MetaPathFinder):
    """Patches Connect's writer once the import system has loaded it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != WRITER_MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _RefusingLoader(spec.loader)
        return spec


class _RefusingLoader(importlib.abc.Loader):
    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        found: ModuleType | None = self._loader.create_module(spec)
        return found

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _refuse_in(module)


def _refuse_in(module: ModuleType) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise _refusal()

    module.DataStreamWriter.start = refuse
    module.DataStreamWriter.toTable = refuse


def _refusal(**facts: object) -> InvalidRequestError:
    return InvalidRequestError(
        "Spark Connect is not supported: its queries cannot be stopped or drained at a batch boundary",
        **facts,
        next_step="Run the script with a classic session: unset SPARK_REMOTE, and set no remote() or spark.remote.",
    )
