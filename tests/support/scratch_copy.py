"""A copy of the package and its docs in which a maintainer's edit is tried."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOT_COPIED = shutil.ignore_patterns("__pycache__", "assets", "static", "integration-logos")


class ScratchCopy:
    """A copy of the package and the docs below a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("airflow_streamstate", "docs"):
            shutil.copytree(ROOT / name, folder / name, ignore=NOT_COPIED)
        for name in ("dags", "tests"):
            (folder / name).symlink_to(ROOT / name)
        shutil.copy(ROOT / "provider.yaml", folder)

    def insert(self, path: str, text: str, before: str) -> None:
        """Insert a text before another one, which the file has once."""
        file = self.folder / path
        source = file.read_text(encoding="utf-8")
        assert source.count(before) == 1
        file.write_text(source.replace(before, text + before), encoding="utf-8")

    def create(self, path: str, text: str) -> None:
        """Create a file."""
        (self.folder / path).write_text(text, encoding="utf-8")

    def changed(self) -> list[str]:
        """The files that differ from the package's and the docs', or that neither has."""
        paths = (path for part in ("airflow_streamstate", "docs") for path in sorted((self.folder / part).rglob("*")))
        names = [path.relative_to(self.folder) for path in paths if path.suffix in (".py", ".md")]
        return [str(name) for name in names if self._is_changed(name)]

    def _is_changed(self, name: Path) -> bool:
        ours = ROOT / name
        return not ours.exists() or (self.folder / name).read_bytes() != ours.read_bytes()

    def run(self, *words: str) -> str:
        """The output of Python in the copy."""
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}
        ended = subprocess.run(
            [sys.executable, *words], cwd=self.folder, env=environment, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout
