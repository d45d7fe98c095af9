"""A seed's empty batch writes no changelog, and the script's session is as it was afterwards."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from airflow_streamstate.driver.spark.spark_query import CHANGELOG_SETTING, whole_state

OTHER = "spark.sql.shuffle.partitions"


class Conf:
    """The JVM's ``RuntimeConfig``, as far as it is asked."""

    def __init__(self, **settings: str) -> None:
        self.settings = settings

    def getAll(self) -> Conf:
        return self

    def keys(self) -> Conf:
        return self

    def toSeq(self) -> Conf:
        return self

    def mkString(self, separator: str) -> str:
        return separator.join(self.settings)

    def get(self, key: str) -> str:
        return self.settings[key]

    def set(self, key: str, value: str) -> None:
        self.settings[key] = value


class Session:
    """A JVM session."""

    def __init__(self, **settings: str) -> None:
        self.settings = Conf(**settings)

    def conf(self) -> Conf:
        return self.settings


@pytest.mark.parametrize("spelled", [CHANGELOG_SETTING, CHANGELOG_SETTING.lower(), None])
def test_changelogs_are_off_meanwhile_and_only_meanwhile(spelled: str | None) -> None:
    """In any spelling, since Spark's RocksDB ignores case (1a.10); where the setting is missing nothing changes."""
    before = {OTHER: "2"} if spelled is None else {spelled: "true", OTHER: "2"}
    session = Session(**before)
    with whole_state(session):
        assert session.settings.settings == {name: "2" if name == OTHER else "false" for name in before}
    assert session.settings.settings == before


def test_a_start_that_fails_leaves_the_session_as_it_was() -> None:
    """What Spark raises passes through."""
    session = Session(**{CHANGELOG_SETTING: "true"})
    with pytest.raises(ValueError, match="not started"), whole_state(session):
        raise ValueError("not started")
    assert session.settings.settings == {CHANGELOG_SETTING: "true"}
