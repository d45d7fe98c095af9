"""Who asked for something, as records name it: ``PERSON (MEANS)``, or only the means where no person is known.

Of Airflow the person is the user that Airflow's API server signed in; of the shell the user of the machine.
"""

from __future__ import annotations

MOST_CHARACTERS = 250


def requester(person: str | None, means: str) -> str:
    """The text of records.

    Args:
        person: the name of the user; None or "" where nobody is known, e.g. of a scheduled run.
        means: what the person has used, e.g. ``shell``.
    """
    means = _one_line(means)
    name = _one_line(person or "")
    return f"{name} ({means.replace('(', '[').replace(')', ']')})" if name else means.replace(" (", " [")


def person_of(text: str) -> str:
    """The person that a record names; "" where it names none."""
    return text.rpartition(" (")[0] if text.endswith(")") else ""


def means_of(text: str) -> str:
    """What was used."""
    return text.rpartition(" (")[2].removesuffix(")") if person_of(text) else text


def is_same_person(one: str, other: str) -> bool:
    """Whether two names are of one person: Airflow's auth managers and directories differ in the case of letters."""
    return one.strip().casefold() == other.strip().casefold()


def _one_line(text: str) -> str:
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())[:MOST_CHARACTERS]
