"""Whether what is sent to a URL can be read on its way: a token is good for everybody who has it."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit


def is_readable_on_its_way(url: str) -> bool:
    """Whether this is ``http`` to another machine than this one."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return True
    if parts.scheme.lower() != "http" or host == "localhost":
        return False
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return True
