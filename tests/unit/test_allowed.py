"""What a home may name beyond it, and the sentence for what it may not."""

from __future__ import annotations

import pytest

from airflow_streamstate.allowed import Allowed, AllowedPlace
from airflow_streamstate.errors import InvalidRequestError

KUBERNETES = {"launcher": "kubernetes", "conn_id": "k8s", "options": {"context": "prod"}}


@pytest.mark.parametrize("raw", [None, "", {}, "{}", {"secrets": [], "launchers": None}])
def test_by_default_nothing_crosses_the_boundary(raw: object) -> None:
    """An empty list allows drivers on this machine, and nothing else."""
    allowed = Allowed.parse(raw)
    allowed.check_place(AllowedPlace("local"))
    for refused in (
        lambda: allowed.check_secret("env://HOME"),
        lambda: allowed.check_place(AllowedPlace("yarn")),
        lambda: allowed.check_spark_connection("spark_default"),
    ):
        with pytest.raises(InvalidRequestError):
            refused()


@pytest.mark.parametrize(
    "raw",
    [
        "[]",
        "nonsense",
        "1",
        "[" * 1000,
        {"secret": []},
        {"secrets": "env://A"},
        {"secrets": [1]},
        {"secrets": [""]},
        {"launchers": {"launcher": "yarn"}},
        {"launchers": ["yarn"]},
        {"launchers": [{"conn_id": "x"}]},
        {"launchers": [{"launcher": 1}]},
        {"launchers": [{"launcher": "yarn", "options": "x"}]},
        {"launchers": [{"launcher": "yarn", "queue": "x"}]},
    ],
)
def test_a_malformed_list_is_refused_with_its_form(raw: object) -> None:
    """A list that would allow something else than its author meant is no list."""
    with pytest.raises(InvalidRequestError, match="no list of what is allowed") as caught:
        Allowed.parse(raw, "the connection x")
    assert caught.value.context["where"] == "the connection x"


@pytest.mark.parametrize(
    ("pattern", "reference", "fits"),
    [
        ("env://PG_*", "env://PG_PASSWORD", True),
        ("env://PG_*", "env://AWS_SECRET_ACCESS_KEY", False),
        ("env://pg_*", "env://PG_PASSWORD", False),
        ("secret://airflow-connection/pg", "secret://airflow-connection/pg", True),
        ("secret://airflow-connection/pg", "secret://airflow-connection/pg#extra.token", True),
        ("secret://airflow-connection/pg", "secret://airflow-connection/pg2#password", False),
        ("secret://airflow-connection/pg#login", "secret://airflow-connection/pg#login", True),
        ("secret://airflow-connection/pg#login", "secret://airflow-connection/pg#password", False),
        ("secret://airflow-connection/pg#login", "secret://airflow-connection/pg", False),
    ],
)
def test_a_secret_is_allowed_by_pattern(pattern: str, reference: str, fits: bool) -> None:
    """A pattern without a part means every part of a connection, one with a part for that part."""
    allowed = Allowed(secrets=(pattern,))
    if fits:
        allowed.check_secret(reference)
        return
    with pytest.raises(InvalidRequestError, match="not allowed"):
        allowed.check_secret(reference)


@pytest.mark.parametrize(
    "place",
    [
        AllowedPlace("kubernetes", "k8s"),
        AllowedPlace("kubernetes", "k8s", {"context": "other"}),
        AllowedPlace("kubernetes", "k8s", {"context": "prod", "kubeconfig": "/tmp/mine"}),
        AllowedPlace("kubernetes", "", {"context": "prod"}),
        AllowedPlace("kubernetes", "other", {"context": "prod"}),
        AllowedPlace("yarn", "k8s", {"context": "prod"}),
    ],
)
def test_a_place_is_allowed_as_a_whole(place: AllowedPlace) -> None:
    """An option that is missing on one side reaches the default of the reader, which is another place."""
    allowed = Allowed.parse({"launchers": [KUBERNETES]})
    allowed.check_place(AllowedPlace("kubernetes", "k8s", {"context": "prod"}))
    with pytest.raises(InvalidRequestError, match="may not be at this place"):
        allowed.check_place(place)


@pytest.mark.parametrize(
    ("pattern", "options", "fits"),
    [
        ({"volumes": "claim:data-*:/data"}, {"volumes": "claim:data-v2.1:/data"}, True),
        ({"volumes": "claim:data-*:/data"}, {"volumes": "claim:data-x:/data,host:/:/node:/data"}, False),
        ({"volumes": "claim:data-*:/data"}, {"volumes": "claim:data-x/y:/data"}, False),
        ({"volumes": "claim:data-*:/data"}, {}, False),
        ({"volumes": "claim:data-[a-z]:/data"}, {"volumes": "claim:data-x:/data"}, False),
        ({"volumes": ["claim:*:/data"]}, {"volumes": ["claim:x:/data"]}, True),
        ({"volumes": ["claim:*:/data"]}, {"volumes": ["claim:x:/data", "host:/:/node"]}, False),
        ({"labels": {"team": "data", "version": "*"}}, {"labels": {"team": "data", "version": "7:anything"}}, True),
        ({"labels": {"team": "data", "version": "*"}}, {"labels": {"team": "data"}}, False),
        ({"labels": {"team": "data", "version": "v*"}}, {"labels": {"team": "pay", "version": "v1"}}, False),
        ({"labels": {"team": "data"}}, {"labels": {"team": "data", "app": "payments"}}, False),
        ({"labels": "*"}, {"labels": {"any": "thing"}}, True),
        ({"labels": "*"}, {}, True),
        ({}, {"labels": {"any": "thing"}}, False),
        ({"port": 1}, {"port": "1"}, True),
    ],
)
def test_options_of_a_place_are_allowed_by_pattern(
    pattern: dict[str, object], options: dict[str, object], fits: bool
) -> None:
    """A star spans no two items of a list, and no field is there that the entry does not name."""
    allowed = Allowed.parse({"launchers": [{"launcher": "kubernetes", "options": pattern}]})
    place = AllowedPlace.of("kubernetes", "", options, None)
    if fits:
        allowed.check_place(place)
        return
    with pytest.raises(InvalidRequestError, match="may not be at this place"):
        allowed.check_place(place)


def test_this_machine_is_a_place_as_others_are() -> None:
    """Once a place is named, a driver on this machine needs the line that the refusal names."""
    allowed = Allowed.parse({"launchers": [KUBERNETES]})
    with pytest.raises(InvalidRequestError, match="may not be at this place") as caught:
        allowed.check_place(AllowedPlace("local"))
    line = '{"launcher": "local"}'
    assert f"add {line} to 'launchers'" in caught.value.next_step
    allowed.joined(Allowed.parse('{"launchers": [' + line + "]}")).check_place(AllowedPlace("local"))
    Allowed(spark_connections=("s",), stores=("s3://x",)).check_place(AllowedPlace("local"))


def test_a_refusal_has_the_line_to_add() -> None:
    """What the next step names is what makes the same call pass."""
    place = AllowedPlace.of(
        "kubernetes", "k8s", {"context": "prod", "namespace": "streams", "port": 1}, {"context", "port"}
    )
    with pytest.raises(InvalidRequestError) as caught:
        Allowed.parse({}, "the field allowed of the connection x").check_place(place, stream_id="flights")
    line = '{"launcher": "kubernetes", "conn_id": "k8s", "options": {"context": "prod", "port": "1"}}'
    assert f"add {line} to 'launchers' in the field allowed of the connection x" in caught.value.next_step
    Allowed.parse('{"launchers": [' + line + "]}").check_place(place)


def test_lists_are_joined_and_written_as_they_are_read() -> None:
    """What a command names is added once."""
    one = Allowed.parse({"secrets": ["env://A"], "launchers": [KUBERNETES]})
    two = Allowed.parse({"secrets": ["env://B", "env://A"], "spark_connections": ["s"], "launchers": [KUBERNETES]})
    joined = one.joined(two)
    assert joined.secrets == ("env://A", "env://B")
    assert joined.launchers == one.launchers
    assert Allowed.parse(joined.to_json()) == joined == joined.joined(one)
