"""Refresh what the pages quote: ``python docs/quote.py``. A test fails when a quote is stale.

A quote is a fenced block below a comment that names a file and one of its START/END sections.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
QUOTE = re.compile(r"(<!-- quote (?P<file>\S+) (?P<section>\w+) -->\n```python\n)(?P<text>.*?)(```)", re.DOTALL)


def section_of(file: str, section: str) -> str:
    """The lines between ``# [START section]`` and ``# [END section]`` of a file of the repository."""
    text = (ROOT / file).read_text(encoding="utf-8")
    found = re.search(rf"# \[START {section}\]\n(.*?)\n*# \[END {section}\]", text, re.DOTALL)
    if found is None:
        raise SystemExit(f"{file} has no section {section}")
    return found.group(1).strip("\n") + "\n"


def refreshed(page: str) -> str:
    """The page with every quote as its file has it now."""
    return QUOTE.sub(lambda m: m.group(1) + section_of(m["file"], m["section"]) + m.group(5), page)


def main() -> int:
    """Write every page anew; returns 0."""
    for page in sorted(DOCS.rglob("*.md")):
        page.write_text(refreshed(page.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
