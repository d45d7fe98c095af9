"""The terms of an operator: its template fields, and what they give once they are rendered.

Each operator writes its ``__init__`` and the ``:param:`` lines of its terms out, since an author's editor, mypy, the
reference pages and Airflow (``default_args``, ``partial``) read source and signatures; ``.pyi`` files would be a second
text that none of those pages and no reader of the source sees. ``python docs/refresh.py`` writes these lines from the
declaration of the terms, between their marks, and a test fails where they differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.hooks.rendered import is_given, launcher_choice, term_value
from airflow_streamstate.protocol.terms.declaration import Term, term, terms_of
from airflow_streamstate.protocol.terms.version import LauncherChoice

Terms = TypeVar("Terms")
_RENDERED_AS_JSON = ("texts", "command", "paths", "mapping", "lists", "part")
_BY_DEFAULT = "By default "


@dataclass(frozen=True)
class _PodTemplate:
    """An option of the launcher ``kubernetes`` that has a field by itself: Airflow shows it as YAML."""

    pod_template: Mapping[str, Any] | None = term(
        None, help="for the launcher `kubernetes`: a pod as YAML or mapping, merged into the driver's"
    )


def default_of(one: Term) -> Any:
    """Its default in a signature, which nobody can change for the others."""
    return None if one.is_optional or one.kind in ("mapping", "lists", "part", "path") else one.default


def taken_terms(*several: Sequence[Term]) -> tuple[Term, ...]:
    """The terms of an operator that has terms of several classes: each name once, and only what operators have."""
    found: dict[str, Term] = {}
    for one in (one for terms in several for one in terms):
        if one.declared.in_operators is True:
            found.setdefault(one.name, one)
    return tuple(found.values())


def kept(terms: Sequence[Term]) -> tuple[Term, ...]:
    """The terms of a change: what is not given stays as it is, whatever a new version would have."""
    return tuple(map(_kept, terms))


def required(terms: Sequence[Term], name: str) -> tuple[Term, ...]:
    """The terms, of which this one has to be given."""
    return tuple(replace(_kept(one), is_required=True, is_optional=False) if one.name == name else one for one in terms)


def by_default(terms: Sequence[Term], **defaults: Any) -> tuple[Term, ...]:
    """The terms, of which these have another default: a task that is tried again does what a person is asked for."""
    return tuple(replace(one, default=defaults.get(one.name, one.default)) for one in terms)


def fields_of(taken: Sequence[Term]) -> tuple[Term, ...]:
    """The terms that are template fields. A launcher is given by its name, its options and its connection."""
    return tuple(each for one in taken for each in (_LAUNCHER if _is_launcher(one) else (one,)))


def is_removable(one: Term) -> bool:
    """Whether a stream may have it no longer: what is not given stays, and an empty value removes it."""
    return one.declared.changes == "stream" and one.is_optional


def names_of(taken: Sequence[Term]) -> tuple[str, ...]:
    """The template fields of these terms."""
    return tuple(one.name_on("operators") for one in fields_of(taken))


def renderers_of(taken: Sequence[Term]) -> dict[str, str]:
    """How Airflow shows the rendered fields that are no plain text."""
    shown = [one for one in fields_of(taken) if one.kind in _RENDERED_AS_JSON]
    return {one.name_on("operators"): "yaml" if one.of is _PodTemplate else "json" for one in shown}


def choices_of(taken: Sequence[Term]) -> dict[str, Sequence[str]]:
    """The words that a field may have."""
    return {one.name_on("operators"): one.choices for one in fields_of(taken) if one.choices}


def rendered_values(task: object, taken: Iterable[Term], *classes: type) -> dict[str, Any]:
    """What the rendered fields of a task give of the terms of these classes, by name. An empty field gives nothing.

    Raises:
        InvalidRequestError: a field cannot be parsed, or one that has to be given is empty.
    """
    wanted = {one.name for cls in classes for one in terms_of(cls)}
    found = {one.name: _rendered(one, task) for one in taken if one.name in wanted}
    found |= {one.name: one.default for one in taken if found.get(one.name, one) is None and _has_own_default(one)}
    return {name: value for name, value in found.items() if value is not None}


def rendered_terms(cls: type[Terms], task: object, taken: Sequence[Term], **fixed: Any) -> Terms:
    """The terms that the rendered fields of a task give.

    Args:
        taken: the terms that are fields of the task; the others have their defaults.
        fixed: terms that the operator decides itself.

    Raises:
        InvalidRequestError: a field cannot be parsed, a term is wrong, or contradicts another.
    """
    return cls(**{**rendered_values(task, taken, cls), **fixed})


def _rendered(one: Term, task: object) -> Any:
    """The value of a rendered field: plain rendering gives text, native rendering an object. None: not given."""
    if _is_launcher(one):
        return launcher_choice(*(getattr(task, each.name) for each in _LAUNCHER))
    field = one.name_on("operators")
    value = getattr(task, field)
    if value == "" and one.kind == "text" and is_removable(one):
        return ""
    if is_given(value):
        return term_value(one, value, field)
    if one.is_required:
        raise InvalidRequestError("this field is empty", field=field, next_step="Give it a value.")
    return None


def _has_own_default(one: Term) -> bool:
    """Whether its default is that of ``by_default``."""
    return one.default is not None and one.default != next(x for x in terms_of(one.of) if x.name == one.name).default


def _kept(one: Term) -> Term:
    sentences = one.declared.help.split(". ")
    text = ". ".join(each for each in sentences if not each.startswith(_BY_DEFAULT))
    return replace(one, default=None, is_optional=True, is_required=False, declared=replace(one.declared, help=text))


def _is_launcher(one: Term) -> bool:
    return one.kind == "part" and one.part is LauncherChoice


_NAMES_OF_A_LAUNCHER = {"name": "launcher", "options": "launcher_options", "conn_id": "launcher_conn_id"}
_LAUNCHER = (
    *(replace(one, name=_NAMES_OF_A_LAUNCHER[one.name]) for one in kept(terms_of(LauncherChoice))),
    *terms_of(_PodTemplate),
)
