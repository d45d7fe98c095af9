"""The terms of an operator: its template fields, and what they give once they are rendered.

Each operator writes its ``__init__`` and the ``:param:`` lines of its terms out, since an author's editor, mypy, the
reference pages and Airflow (``default_args``, ``partial``) read source and signatures; ``.pyi`` files would be a second
text that none of those pages and no reader of the source sees. ``python docs/refresh.py`` writes these lines from the
declaration of the terms, between their marks, and a test fails where they differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from airflow_streamstate.hooks.rendered import (
    as_seconds,
    one_of,
    optional_factor,
    optional_text,
    texts,
    whole_number,
    yes_or_no,
)
from airflow_streamstate.protocol.terms.declaration import Term, terms_of

Terms = TypeVar("Terms")


def names_of(taken: Sequence[Term]) -> tuple[str, ...]:
    """The template fields of these terms."""
    return tuple(one.name for one in taken)


def renderers_of(taken: Sequence[Term]) -> dict[str, str]:
    """How Airflow shows the rendered fields that are no plain text."""
    return {one.name: "json" for one in taken if one.kind in ("texts", "command")}


def choices_of(taken: Sequence[Term]) -> dict[str, Sequence[str]]:
    """The words that a field may have."""
    return {one.name: one.choices for one in taken if one.choices}


def rendered_terms(cls: type[Terms], task: object, taken: Sequence[Term], **fixed: Any) -> Terms:
    """The terms that the rendered fields of a task give.

    Args:
        taken: the terms that are fields of the task; the others have their defaults.
        fixed: terms that the operator decides itself.

    Raises:
        InvalidRequestError: a field cannot be parsed, a term is wrong, or contradicts another.
    """
    known = {one.name for one in terms_of(cls)}
    given = {one.name: _parsed(one, getattr(task, one.name)) for one in taken if one.name in known}
    return cls(**{**given, **fixed})


def _parsed(one: Term, value: object) -> Any:
    """The value of a rendered field: plain rendering gives text, native rendering an object."""
    if one.kind in ("texts", "command"):
        is_given = not isinstance(value, str) or optional_text(value) is not None
        return texts(value, one.name) if is_given else ()
    if one.is_optional and optional_text(value) is None:
        return None
    if one.kind == "flag":
        return yes_or_no(value, one.name)
    if one.kind == "choice":
        return one_of(value, one.choices, one.name)
    if one.kind == "seconds":
        return as_seconds(value, one.name)
    if one.kind == "whole":
        return whole_number(value, one.name)
    return optional_factor(value, one.name) if one.kind == "number" else optional_text(value)
