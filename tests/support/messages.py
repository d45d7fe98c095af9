"""Hypothesis strategies for messages of any kind, made from the types of the fields."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import math
import pkgutil
import types
import typing
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone

from hypothesis import strategies as st

import airflow_streamstate.plan.model
import airflow_streamstate.protocol
from airflow_streamstate.clock import whole_milliseconds
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol import codec
from airflow_streamstate.protocol.codec import FIRST_YEAR, LAST_YEAR, Message
from airflow_streamstate.protocol.ids import deployment_id_for
from airflow_streamstate.protocol.terms.declaration import Term, terms_of
from airflow_streamstate.protocol.terms.order import RollbackTerms, UpgradeTerms
from airflow_streamstate.protocol.upgrades import Upgrade

for _module in pkgutil.iter_modules(airflow_streamstate.protocol.__path__):
    importlib.import_module(f"airflow_streamstate.protocol.{_module.name}")


def _registered(cls: type[Message]) -> Iterator[type[Message]]:
    if cls.__dict__.get("kind") and cls.__module__.startswith("airflow_streamstate."):
        yield cls
    for each in cls.__subclasses__():
        yield from _registered(each)


KINDS: dict[str, type[Message]] = {cls.kind: cls for cls in _registered(Message)}
"""Every registered kind, with its class."""

numbers = st.integers(-(2**40), 2**40)
floats = st.floats(allow_nan=False, allow_infinity=False)
event_times = st.datetimes(timezones=st.just(timezone.utc)).map(whole_milliseconds)
moments = st.builds(lambda year, at: at.replace(year=year, day=1), st.integers(FIRST_YEAR, LAST_YEAR), event_times)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | floats | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
_PLAIN: dict[object, st.SearchStrategy[typing.Any]] = {
    str: st.text(max_size=12),
    int: numbers,
    float: floats,
    bool: st.booleans(),
    object: json_values,
    datetime: moments,
}


ids = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True)
deployment_ids = st.integers(0, 99_999).map(deployment_id_for)
rehearsal_ids = st.from_regex(r"r-[0-9a-f]{12}-[0-9]{4}", fullmatch=True)
upgrade_ids = st.from_regex(r"u-[0-9a-f]{12}", fullmatch=True)
words = st.text(max_size=12).map(lambda text: text.replace("\x00", ""))
_CHECKED: dict[object, st.SearchStrategy[typing.Any]] = {
    codec.StreamId: ids,
    codec.DeploymentId: deployment_ids,
    codec.DeploymentIdOrNone: st.just("") | deployment_ids,
    codec.RunId: deployment_ids | rehearsal_ids | upgrade_ids,
    codec.SnapshotId: ids,
    codec.SnapshotIdOrNone: st.just("") | ids,
    codec.RehearsalId: rehearsal_ids,
    codec.RehearsalIdOrNone: st.just("") | rehearsal_ids,
    codec.UpgradeId: upgrade_ids,
    codec.UpgradeIdOrNone: st.just("") | upgrade_ids,
    codec.ScratchId: rehearsal_ids,
    codec.RequestId: ids,
    codec.LaunchKey: ids,
    codec.QueryName: st.text(min_size=1, max_size=12),
    codec.QueryNameOrNone: st.text(max_size=12),
    codec.Sha256: st.just("0" * 64),
    codec.Sha256OrNone: st.sampled_from(["", "0" * 64]),
    codec.Attempt: st.integers(0, codec.MOST_ATTEMPTS),
    codec.Token: st.integers(0, codec.MOST_TOKENS),
    codec.Count: st.integers(0, 2**40),
    codec.Seconds: st.floats(-codec.MOST_SECONDS, codec.MOST_SECONDS),
    codec.Milliseconds: st.integers(-(10**13), 10**13),
    codec.RelativePath: st.lists(ids, min_size=1, max_size=2).map("/".join),
    codec.FileName: st.lists(ids, min_size=1, max_size=2).map("/".join),
    codec.Word: words,
    codec.Facts: st.dictionaries(words, st.none() | numbers | words, max_size=3),
    codec.EventTime: event_times,
}


@functools.cache
def messages_of(cls: type) -> st.SearchStrategy[typing.Any]:
    """Any instance of a message class, or of a dataclass inside one."""
    hints = typing.get_type_hints(cls, include_extras=True)
    terms = {one.name: one for one in terms_of(cls)}
    named = dataclasses.fields(typing.cast("typing.Any", cls))
    values = {each.name: _values_of_field(hints[each.name], terms.get(each.name)) for each in named}
    if cls is Upgrade:
        of_upgrade = {"upgrade_terms": messages_of(UpgradeTerms), "rollback_terms": st.none()}
        of_rollback = {"upgrade_terms": st.none(), "rollback_terms": messages_of(RollbackTerms)}
        return st.builds(cls, **{**values, **of_upgrade}) | st.builds(cls, **{**values, **of_rollback})
    if not terms:
        return st.builds(cls, **values)
    return st.fixed_dictionaries(values).filter(lambda given: _fits(cls, given)).map(lambda given: cls(**given))


def _fits(cls: type, values: Mapping[str, object]) -> bool:
    try:
        cls(**values)
    except InvalidRequestError:
        return False
    return True


def _values_of_field(hint: typing.Any, one: Term | None) -> st.SearchStrategy[typing.Any]:
    """Numbers of terms are within their bounds, and texts that have no other type are names."""
    if one is None or not (one.is_number or hint is str):
        return values_of(hint)
    found: st.SearchStrategy[typing.Any] = ids
    if one.is_number:
        least, most = (bound if math.isfinite(bound) else None for bound in one.bounds)
        is_whole = one.kind == "whole"
        found = st.integers(_round(least), _round(most)) if is_whole else st.floats(least, most, allow_nan=False)
    return st.none() | found if one.is_optional else found


def _round(bound: float | None) -> int | None:
    return None if bound is None else round(bound)


def values_of(hint: typing.Any) -> st.SearchStrategy[typing.Any]:
    """Any value of a field with this type."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _CHECKED[hint]
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*[st.none() if option is type(None) else values_of(option) for option in arguments])
    if origin is typing.Literal:
        return st.sampled_from(arguments)
    if origin is tuple:
        return st.lists(values_of(arguments[0]), max_size=2).map(tuple)
    if origin in (dict, Mapping):
        return st.dictionaries(values_of(arguments[0]), values_of(arguments[1]), max_size=2)
    return _PLAIN[hint] if hint in _PLAIN else messages_of(hint)
