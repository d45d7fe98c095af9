"""Properties files, read back as Java reads them."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from airflow_streamstate.store.options import format_properties, survives

TEXT = st.text(st.characters(codec="utf-8"), max_size=40)


def java_load(body: bytes) -> dict[str, str]:
    """What ``java.util.Properties.load`` makes of it, as its documentation describes."""
    values = {}
    for line in re.split(r"[\r\n]+", body.decode("ascii")):
        line = line.lstrip(" \t\f")
        if not line or line[0] in "#!":
            continue
        key = re.match(r"(?:\\.|[^\\=: \t\f])*", line)
        assert key is not None
        rest = re.sub(r"^[ \t\f]*[=:]?[ \t\f]*", "", line[key.end() :])
        values[java_unescape(key.group())] = java_unescape(rest)
    return values


def java_unescape(text: str) -> str:
    named = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}

    def one(match: re.Match[str]) -> str:
        if match[1]:
            return chr(int(match[1], 16))
        return named.get(match[2], match[2])

    text = re.sub(r"\\(?:u([0-9a-fA-F]{4})|(.))", one, text, flags=re.DOTALL)
    return text.encode("utf-16", "surrogatepass").decode("utf-16")


@given(st.dictionaries(TEXT.filter(bool), TEXT, max_size=5))
def test_every_text_survives(values: dict[str, str]) -> None:
    """Blanks, separators, backslashes, newlines and characters of any plane are read back as they were."""
    assert java_load(format_properties(values)) == values


def test_equal_values_make_equal_files() -> None:
    """The file does not depend on the order of the configuration."""
    assert format_properties({"a": "1", "b": "2"}) == format_properties({"b": "2", "a": "1"}) == b"a=1\nb=2\n"


def test_blanks_at_an_end_are_told() -> None:
    """Spark cuts blanks and control characters off both ends of a value, but not line ends."""
    assert [survives(value) for value in ("a b", "", "a\n", "\ra")] == [True] * 4
    assert [survives(value) for value in (" a", "a ", "a\t", "\x00a")] == [False] * 4
