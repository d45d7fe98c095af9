"""What real drivers of this tier need."""

from __future__ import annotations

import pytest

from support.quick_jvm import make_archive


@pytest.fixture(scope="session")
def quick_jvm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Drivers of this test run start fast."""
    make_archive(tmp_path_factory.mktemp("classes"))
