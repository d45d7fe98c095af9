"""What a script or Spark said of a failure, without the pages that nobody reads at night."""

from __future__ import annotations

import re

_LAUNCH_FOLDER = re.compile(
    r"""(?:(?<=")/[^"\n]*|(?<![^\s'(=])/[^\s"']*)/launches/[a-z0-9-]+/code/(?:py-files/|files/)?"""
)


def without_launch_folder(text: str) -> str:
    """The words without the folder into which a script was pinned for one launch or rehearsal: its name is left."""
    return _LAUNCH_FOLDER.sub("", text)


def is_told_by(traceback: object, log_tail: object) -> bool:
    """Whether the end of a log tells once more what a traceback has told: the script's last words."""
    *_, last = ("", *(line.strip() for line in str(traceback or "").splitlines() if line.strip()))
    return bool(last) and last in str(log_tail)
