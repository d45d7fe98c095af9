"""Java properties files, as ``spark-submit`` reads them: configuration reaches a driver without being seen in ``ps``.

Spark reads the file with ``java.util.Properties`` and then cuts blanks off both ends of every value (newlines stay);
everything else survives the escapes below.
"""

from __future__ import annotations

from collections.abc import Mapping

_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}


def format_properties(values: Mapping[str, str]) -> bytes:
    """The values as a properties file: ASCII only, one line each, in the order of their keys."""
    lines = (f"{_escape(key, '=:#! ')}={_escape(value, '')}" for key, value in sorted(values.items()))
    return "".join(f"{line}\n" for line in lines).encode("ascii")


def survives(value: str) -> bool:
    """Whether Spark reads back the same value: one with blanks or other control characters at an end it cuts."""
    return value == value.strip("".join(chr(code) for code in range(33) if chr(code) not in "\r\n"))


def _escape(text: str, also: str) -> str:
    # A leading blank would be taken for the space between key and value.
    return "".join(_escape_character(char, also + (" " if index == 0 else "")) for index, char in enumerate(text))


def _escape_character(char: str, also: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    if char in also:
        return f"\\{char}"
    if " " <= char <= "~":
        return char
    # Java's characters are UTF-16: outside the basic plane, two of them.
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at] << 8 | units[at + 1]:04x}" for at in range(0, len(units), 2))
