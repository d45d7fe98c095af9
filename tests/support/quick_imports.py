"""Refuses imports of Airflow and Spark, which take seconds, in the tier ``quick``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

REFUSED = {"airflow", "pyspark", "py4j"}


class _Refusing(MetaPathFinder, Loader):
    """Such a package is found, so that code which looks for it answers as ever, and cannot be imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname.partition(".")[0] in REFUSED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        raise ModuleNotFoundError(
            f"the tier quick imports no {spec.name}: mark the test `fast`, or name its file in support/tiers.py",
            name=spec.name,
        )


def refuse() -> None:
    """Refuse them in this process from now on."""
    sys.meta_path.insert(0, _Refusing())
