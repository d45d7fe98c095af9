"""What a key may look like, checked in one place for every backend.

The rules are the strictest of all backends together, so that a key which one of them takes is good for each of them.
"""

from __future__ import annotations

import unicodedata

from airflow_streamstate.errors import InvalidRequestError

MAX_KEY_BYTES = 900
TEMPORARY_PREFIX = ".~streamstate-"
"""How the names of a backend's own temporary and lock files begin. They are never listed, so no key may hold one."""


def check_key(key: str) -> str:
    """The key, unchanged, if it may name an object: relative, ``/``-separated, at most MAX_KEY_BYTES of UTF-8.

    Raises:
        InvalidRequestError: it is empty, absolute or too long, or has an empty, ``.`` or ``..`` part, a control
            character, or a part with the reserved prefix.
    """
    _check_text(key)
    for part in key.split("/"):
        if part in ("", ".", ".."):
            raise _bad_key("a key has an empty, '.' or '..' part", key)
        if part.startswith(TEMPORARY_PREFIX):
            raise _bad_key("a key uses a name that is reserved for temporary files", key)
    return key


def check_prefix(prefix: str) -> str:
    """The prefix, unchanged, if keys can begin with it; its last part may be empty or cut short. "" is every key.

    Raises:
        InvalidRequestError: no key can begin like this.
    """
    _check_text(prefix)
    folder, slash, _ = prefix.rpartition("/")
    if slash:
        check_key(folder)
    return prefix


def check_folder(folder: str) -> str:
    """The folder, unchanged, if it is a key without its last part; "" is the root.

    Raises:
        InvalidRequestError: no key can lie in it.
    """
    return check_key(folder) if folder else folder


def is_key(text: str) -> bool:
    """Whether ``check_key`` takes it: listings skip what other programs left under names that no key can have."""
    try:
        check_key(text)
    except InvalidRequestError:
        return False
    return True


def is_plain(text: str) -> bool:
    """Whether a path whose parts are names of files is surely a key: nearly every one, and listings see thousands."""
    return text.isascii() and text.isprintable() and len(text) <= MAX_KEY_BYTES


def _check_text(text: str) -> None:
    # Cc: control characters with NUL; Cs: halves of surrogate pairs, which have no UTF-8.
    if not is_plain(text) and any(unicodedata.category(char) in ("Cc", "Cs") for char in text):
        raise _bad_key("a key has a control character or one that UTF-8 cannot hold", text)
    if len(text.encode()) > MAX_KEY_BYTES:
        raise InvalidRequestError("a key is too long", key=text[:80] + "…", max_bytes=MAX_KEY_BYTES)


def _bad_key(message: str, key: str) -> InvalidRequestError:
    return InvalidRequestError(
        message, key=ascii(key), next_step="Keys are relative, with parts separated by single slashes."
    )
