"""Record the net again: ``python tests/net/record.py``, after a change that is meant. Look at the diff before a commit.

What follows the command are names of lives, or ``surfaces``: then only these are recorded.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.net import LIVES, SURFACES, recorded_traces, trace_path, trace_text  # noqa: E402 - the path comes first
from support.surfaces import surfaces_text  # noqa: E402


def main(wanted: Sequence[str]) -> int:
    """Write what differs, and print which files."""
    names = [name for name in LIVES if not wanted or name in wanted]
    found = {trace_path(name): trace_text(name) for name in names}
    if not wanted or "surfaces" in wanted:
        found[SURFACES] = surfaces_text()
    for path, text in found.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(path.relative_to(ROOT))
    for path in recorded_traces() if not wanted else ():
        if path not in found:
            path.unlink()
            print(f"{path.relative_to(ROOT)} is removed")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
