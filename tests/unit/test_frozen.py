"""Frozen dataclasses without compiled methods behave as those of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from dataclasses import field
from typing import Any

import pytest

from airflow_streamstate.frozen import dataclass as uncompiled

MAKERS: tuple[Any, ...] = (uncompiled, dataclasses.dataclass)


@uncompiled(frozen=True)
class Place:
    """At the top of a module, so that pickle finds it."""

    name: str
    parts: tuple[str, ...] = ()


def _classes(make: Any) -> tuple[Any, Any]:
    """A class with every kind of field, and one derived from it."""

    @make(frozen=True)
    class Fact:
        """With checks."""

        name: str
        count: int = 1
        secret: str = field(default="", repr=False)
        where: str = field(default="", compare=False)
        more: list[str] = field(default_factory=list, hash=False, compare=False)

        def __post_init__(self) -> None:
            if self.count < 0:
                raise ValueError("count")

        @property
        def twice(self) -> int:
            return self.count * 2

    @make(frozen=True, kw_only=True)
    class Named(Fact):
        """With a field that is given by its name."""

        label: str
        count: int = 2

    return Fact, Named


def _end(act: Callable[[], object]) -> object:
    """What comes of it: the value as text, or the type of the error."""
    try:
        return repr(act())
    except Exception as error:
        return type(error)


ACTS: tuple[Callable[[Any, Any], object], ...] = (
    lambda fact, _: fact("a"),
    lambda fact, _: fact("a", 2, "s", where="x"),
    lambda fact, _: fact(count=3, name="a"),
    lambda fact, _: list(vars(fact(count=3, name="a"))),
    lambda fact, _: fact(),
    lambda fact, _: fact("a", unknown=1),
    lambda fact, _: fact("a", name="b"),
    lambda fact, _: fact("a", 1, "", "", [], 6),
    lambda fact, _: fact("a", -1),
    lambda fact, _: fact("a") == fact("a", where="elsewhere"),
    lambda fact, _: fact("a") == fact("b"),
    lambda fact, _: fact("a") != fact("b"),
    lambda fact, named: fact("a", 2) == named("a", label="l"),
    lambda fact, _: fact("a") == "a",
    lambda fact, _: len({fact("a"), fact("a", where="x"), fact("b")}),
    lambda fact, _: fact("a").more is fact("a").more,
    lambda fact, _: fact("a", 4).twice,
    lambda fact, _: setattr(fact("a"), "name", "b"),
    lambda fact, _: setattr(fact("a"), "other", "b"),
    lambda fact, _: delattr(fact("a"), "name"),
    lambda fact, _: dataclasses.replace(fact("a"), name="b"),
    lambda fact, _: dataclasses.replace(fact("a"), count=-1),
    lambda fact, _: dataclasses.asdict(fact("a", more=["x"])),
    lambda fact, _: copy.deepcopy(fact("a", more=["x"])),
    lambda fact, _: [one.name for one in dataclasses.fields(fact)],
    lambda fact, _: fact.__match_args__,
    lambda _, named: named("a", label="l"),
    lambda _, named: named("a", 5, label="l"),
    lambda _, named: named("a"),
    lambda _, named: named("a", "", "", [], "l"),
    lambda _, named: named.__dataclass_params__.frozen,
)


@pytest.mark.parametrize("number", range(len(ACTS)))
def test_it_does_what_the_compiled_one_does(number: int) -> None:
    """Made, refused, compared, shown, copied and changed alike."""
    ours, theirs = (_end(lambda made=made: ACTS[number](*made)) for made in map(_classes, MAKERS))
    assert ours == theirs


@pytest.mark.parametrize(("parent", "child"), [MAKERS, MAKERS[::-1]])
def test_one_is_derived_from_the_other(parent: Any, child: Any) -> None:
    """A class may be below one of the other kind, and both stay frozen."""

    @parent(frozen=True)
    class Above:
        """Of one kind."""

        name: str

    @child(frozen=True)
    class Below(Above):
        """Of the other kind."""

        count: int = 0

    assert Below("a", 2) == Below(name="a", count=2)
    for one in (Above("a"), Below("a")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            one.name = "b"


def test_it_survives_pickle() -> None:
    """Workers of tests and of Airflow hand such values over."""
    place = Place("a", ("b",))
    assert pickle.loads(pickle.dumps(place)) == place  # noqa: S301 - of this test


def test_own_methods_stay() -> None:
    """What the class defines itself is not replaced."""

    @uncompiled(frozen=True)
    class Own:
        """With its own comparison."""

        name: str

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 1

        def __repr__(self) -> str:
            return "own"

    assert (Own("a") == 3, hash(Own("a")), repr(Own("a"))) == (True, 1, "own")


def test_what_it_cannot_do_is_refused() -> None:
    """A class that is not frozen, and a field that is not given, belong to ``dataclasses``."""
    with pytest.raises(TypeError, match="not frozen"):
        uncompiled(frozen=False)
    with pytest.raises(TypeError, match="init=False"):

        @uncompiled(frozen=True)
        class _Counted:
            """With a field that nobody gives."""

            count: int = field(init=False)
