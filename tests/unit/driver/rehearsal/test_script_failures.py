"""Where a function of a script failed, and what it had there; and a debugger over a socket."""

from __future__ import annotations

import json
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from itertools import chain, repeat
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest
from pyspark.sql import Row

from airflow_streamstate.driver.rehearsal.script_failures import (
    MARK,
    debug_breakpoints,
    debug_failure,
    is_debugging,
    values_at,
    without_values,
)


class Silent:
    """Cannot be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


def speed(distance: object, minutes: int) -> int:
    """Divides by zero."""
    text = "x" * 1000
    silent = Silent()
    assert text
    assert silent
    return int(str(distance)) // minutes


def raised(distance: object) -> Exception:
    """What it raises, with its traceback."""
    try:
        speed(distance, 0)
    except Exception as error:
        return error
    raise AssertionError


def test_the_arguments_come_first_and_no_value_is_long() -> None:
    """A value that cannot be shown is reported as such."""
    found = values_at(raised(447).__traceback__)
    assert found.startswith("test_script_failures.py, line ")
    assert ", in speed: distance=447, minutes=0, text=<str of 1000>" in found
    assert "silent=<Silent instance at" in found or "silent=<RuntimeError in its repr>" in found
    assert len(found) < 400


class Login(NamedTuple):
    """A tuple with names."""

    user: str
    password: str


@dataclass
class Client:
    """Its repr has names."""

    host: str
    api_key: str


def failed_at(function: Callable[..., object], *arguments: object) -> str:
    """Where a function fails, and its values there."""
    try:
        function(*arguments)
    except Exception as error:
        return values_at(error.__traceback__)
    raise AssertionError


def shown(value: object) -> str:
    """How a local value is reported."""

    def fail(value: object) -> None:
        raise ValueError

    return failed_at(fail, value).partition(", in fail: value=")[2]


def loaded(file: Path, text: str) -> ModuleType:
    """A module with this text."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    spec = spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_values_under_the_name_of_a_secret_are_hidden() -> None:
    """Of a local value, a dictionary, a row and a data class."""

    def connect(user: str, password: str) -> None:
        raise ValueError

    assert failed_at(connect, "ada", "hunter22").endswith("in connect: user='ada', password=***")
    assert shown({"user": "ada", "api_key": "hunter22", 3: [1]}) == "{'user': 'ada', 'api_key': '***', 3: [1]}"
    assert shown(Row(user="ada", token="hunter22")) == "Row(user='ada', token=***)"
    assert shown(Login("ada", "hunter22")) == "Login(user='ada', password=***)"
    assert shown(Client("h", "hunter22, 'x'")) == "Client(host='h', api_key=***)"
    assert shown("postgresql://ada:hunter22@db/flights") == "'postgresql://***@db/flights'"


@pytest.mark.parametrize("before", range(90, 130))
def test_no_part_of_a_secret_is_left_by_a_cut(before: int) -> None:
    """As a whole it is found and hidden, wherever it is; half of it would not be."""
    secret = "hunter22hunter22"
    for value in (
        "x" * before + secret,
        {"a": "x" * before, "b": [secret]},
        [*"x" * (before // 5), secret],
        b"x" * before,
    ):
        text = shown(value)
        assert "hunter22" not in text.replace(secret, "")
        assert len(text) < 200


def test_containers_are_shown_as_far_as_they_find_room() -> None:
    """And none without end."""
    assert shown((1,)) == "(1,)"
    assert shown(()) == "()"
    assert shown(set()) == "set()"
    assert shown({"text": "x" * 1000, "n": 1}) == "{'text': <str of 1000>, 'n': 1}"
    assert shown(list(range(1_000_000))).endswith(", 31, …]")
    endless: list[object] = [1]
    endless.append(endless)
    assert shown(endless) == "[1, [1, [1, […]]]]"


def test_the_innermost_place_of_the_user_is_shown() -> None:
    """Not that in a library, which the function calls."""

    def parse(row: str) -> object:
        return json.loads(row)

    try:
        parse("{")
    except ValueError as error:
        found = values_at(error.__traceback__)
    assert ", in parse: row='{'" in found
    assert values_at(None) == ""


@pytest.mark.parametrize(
    ("name", "folder"), [("pyspark", "spark/python/pyspark"), ("py4j", "spark/python/lib/py4j-0.10.9.9-src.zip/py4j")]
)
def test_a_distribution_of_spark_is_a_library(
    name: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folders are none of packages; the script alongside them is the user's."""
    library = loaded(tmp_path / folder / "__init__.py", "def call(of): of.no")
    script = loaded(tmp_path / "spark" / "job.py", "def job(call, of): call(of)")
    assert failed_at(script.job, library.call, 1) == "__init__.py, line 1, in call: of=1"
    monkeypatch.setitem(sys.modules, name, library)
    assert failed_at(script.job, library.call, 1) == "job.py, line 1, in job: of=1"


def test_values_are_told_apart_from_the_error_that_brings_them() -> None:
    """As Spark repeats a worker's report in its own."""
    error = raised(447)
    error.add_note(f"{MARK}job.py, line 3, in speed: minutes=0")
    text = "".join(traceback.format_exception(error))
    said, values = without_values(f"{text}\nCaused by: {text}")
    assert values == "job.py, line 3, in speed: minutes=0"
    assert MARK not in said
    assert said.count("ZeroDivisionError") == 2
    assert without_values("no values") == ("no values", "")


@contextmanager
def typing(path: str, person: Callable[[socket.socket], None]) -> Iterator[None]:
    """A person at a terminal that listens there, until they are done."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        listener.settimeout(60)
        thread = threading.Thread(target=person, args=(listener,))
        thread.start()
        try:
            yield
        finally:
            thread.join()


def counted(most: int) -> int:
    """Stops at a breakpoint."""
    total = 0
    breakpoint()
    for number in range(most):
        total += number
    return total


TOTAL = counted.__code__.co_firstlineno + 5


@pytest.mark.parametrize("last", ["c", "n", "r", "until"])
def test_the_terminal_is_given_back_until_the_next_stop(
    last: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each ``c``, with a breakpoint set, and where a person steps past the end; each stop connects again."""
    path = str(tmp_path / "pdb")
    monkeypatch.setattr(sys, "breakpointhook", sys.breakpointhook)
    debug_breakpoints(path)
    heard: list[str] = []

    def visit(listener: socket.socket, *typed: str) -> None:
        """At each prompt a line, the last one again and again, until it is closed."""
        connection, _ = listener.accept()
        connection.settimeout(60)
        heard.append("")
        lines = chain(typed, repeat(typed[-1]))
        with connection:
            while said := connection.recv(65_536).decode():
                heard[-1] += said
                if heard[-1].endswith("(Pdb) "):
                    connection.sendall(f"{next(lines)}\n".encode())

    def person(listener: socket.socket) -> None:
        visit(listener, f"b {TOTAL}", "c")
        visit(listener, "p 'at', number", "c")
        visit(listener, "p 'at', number", f"clear {__file__}:{TOTAL}", last)
        visit(listener, "q")  # of the error, in the same process

    results: list[int] = []
    with typing(path, person):
        thread = threading.Thread(target=lambda: results.append(counted(3)))
        thread.start()
        thread.join(60)
        assert not is_debugging()
        debug_failure(path, raised(447))
    assert not is_debugging()
    assert results == [3]
    assert ["('at', 0)" in heard[1], "('at', 1)" in heard[2], "ZeroDivisionError" in heard[3]] == [True] * 3
    counted(3)  # nobody listens any more


def test_a_person_looks_at_the_values_over_a_socket(tmp_path: Path) -> None:
    """And gives the terminal back; nothing happens where none listens."""
    path = str(tmp_path / "pdb")
    error = raised(447)
    debug_failure(path, error)
    assert not is_debugging()
    said: list[str] = []
    opened: list[bool] = []

    def person(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, connection.makefile("r") as terminal:
            said.append(terminal.readline())
            opened.append(is_debugging())
            connection.sendall(b"p minutes + 41\np distance * 2\nq\n")
            said.extend(terminal)

    with typing(path, person):
        debug_failure(path, error)
    assert (opened, is_debugging()) == ([True], False)
    text = "".join(said)
    assert "ZeroDivisionError" in text
    assert "(Pdb) 41\n" in text
    assert "894" in text
