"""Record the net again: ``python tests/net/record.py``, after a change that is meant. Look at the diff before a commit.

What follows the command are names of lives, ``surfaces`` or ``messages``: then only these are recorded. ``--check``
writes nothing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from airflow_streamstate.protocol.codec import to_bytes  # noqa: E402 - the path comes first
from support.examples import GOLDEN_MESSAGES, RECORDED, golden_of  # noqa: E402
from support.net import LIVES, SURFACES, recorded_traces, trace_path, trace_text  # noqa: E402
from support.surfaces import surfaces_text  # noqa: E402

OTHERS = ("surfaces", "messages")


def main(arguments: Sequence[str]) -> int:
    """Write what differs, and print which files; by ``--check`` print them alone, and return 1 if there are any."""
    given = _given(arguments)
    wanted = set(given.wanted) or {*LIVES, *OTHERS}
    found = {trace_path(name): trace_text(name) for name in LIVES if name in wanted}
    left = [] if given.wanted else [path for path in recorded_traces() if path not in found]
    if "surfaces" in wanted:
        found[SURFACES] = surfaces_text()
    if "messages" in wanted:
        found |= {golden_of(value): to_bytes(value).decode() for value in RECORDED}
        left += [path for path in sorted(GOLDEN_MESSAGES.iterdir()) if path not in found]
    changed = [path for path, text in found.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in changed:
        print(path.relative_to(ROOT))
    for path in left:
        print(f"{path.relative_to(ROOT)} is removed")
    if given.check:
        return 1 if changed or left else 0
    for path in changed:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(found[path], encoding="utf-8")
    for path in left:
        path.unlink()
    return 0


def _given(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Record the net again, after a change that is meant.")
    parser.add_argument("wanted", nargs="*", metavar="NAME", help="of a life, `surfaces` or `messages`; all without it")
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 where something differs")
    given = parser.parse_args(arguments)
    if unknown := set(given.wanted) - {*LIVES, *OTHERS}:
        choices = ", ".join((*LIVES, *OTHERS))
        parser.error(f"there is no life {', '.join(sorted(unknown))}; choose from {choices}")
    return given


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
