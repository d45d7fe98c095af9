"""Drivers of the soak start fast."""

from __future__ import annotations

import pytest

from support.quick_jvm import make_archive


@pytest.fixture(scope="session")
def quick_jvm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A class archive for every JVM of this run."""
    make_archive(tmp_path_factory.mktemp("classes"))
