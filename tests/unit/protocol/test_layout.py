"""The place of every object."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.ids import is_id
from airflow_streamstate.store.base import check_key, check_prefix

IDS = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", fullmatch=True)
ARGUMENTS: dict[str, st.SearchStrategy[object]] = {
    "query_name": st.text(min_size=1, max_size=26),
    "number": st.integers(1, 10**9),
    "attempt": st.integers(1, 10**9),
    "sha256": st.just("ab" * 32),
    "name": st.just("job.py"),
}
OF_THE_HOME = ("home_key", "feed_folder", "feed_key", "stream_of_key")
BUILDERS = [
    function
    for name, function in inspect.getmembers(layout, inspect.isfunction)
    if function.__module__ == layout.__name__
    and name.endswith(("_key", "_folder", "_prefix"))
    and name not in OF_THE_HOME
]


def test_the_record_of_the_home_lies_in_no_stream() -> None:
    """It is a key that every store takes, and no name of a stream."""
    assert check_key(layout.home_key()) == layout.home_key()
    assert not is_id(layout.home_key())


@given(IDS, IDS, IDS)
def test_the_feed_of_the_home_lies_in_no_stream(period: str, stream_id: str, mark: str) -> None:
    """An entry names its stream by its key, whatever the ids."""
    key = layout.feed_key(period, stream_id, mark)
    assert check_key(key) == key
    assert not is_id(layout.FEED_FOLDER)
    assert key.startswith(f"{layout.feed_folder(period)}/")
    assert layout.stream_of_feed(key) == stream_id


@pytest.mark.parametrize("builder", BUILDERS, ids=lambda function: function.__name__)
def test_every_key_is_one_that_a_store_takes_below_its_stream(builder: object) -> None:
    """Whatever the ids and names, a key stays below its stream and is good for every store (Law 4)."""
    parameters = list(inspect.signature(builder).parameters)  # type: ignore[arg-type]

    @given(st.fixed_dictionaries({name: ARGUMENTS.get(name, IDS) for name in parameters}))
    def check(arguments: dict[str, object]) -> None:
        built = builder(**arguments)  # type: ignore[operator]
        assert built.startswith(f"{arguments['stream_id']}/")
        if builder.__name__.endswith("_prefix"):  # type: ignore[attr-defined]
            assert check_prefix(built).endswith("/")
        else:
            assert check_key(built) == built
        if "deployment_id" in arguments:
            own = layout.deployment_folder(str(arguments["stream_id"]), str(arguments["deployment_id"]))
            assert built == own or built.startswith(f"{own}/")

    check()


@given(IDS, IDS, st.integers(1, 10**9))
def test_numbers_are_read_back_from_keys(stream_id: str, deployment_id: str, number: int) -> None:
    """Commands, events and claims: the number is in the key, and the key starts with its prefix."""
    for key, prefix in [
        (layout.command_key(stream_id, deployment_id, number), layout.commands_prefix(stream_id, deployment_id)),
        (layout.event_key(stream_id, deployment_id, number), layout.events_prefix(stream_id, deployment_id)),
        (layout.claim_key(stream_id, deployment_id, number), layout.deployment_folder(stream_id, deployment_id)),
    ]:
        assert layout.number_of(key) == number
        assert key.startswith(prefix)


@given(st.lists(st.integers(1, 10**layout.NUMBER_DIGITS - 1), unique=True))
def test_a_listing_is_in_the_order_of_the_numbers(numbers: list[int]) -> None:
    """Keys are zero-padded, so that their order is the numbers'."""
    keys = sorted(layout.event_key("orders", "d-0001", number) for number in numbers)
    assert [layout.number_of(key) for key in keys] == sorted(numbers)


@pytest.mark.parametrize(
    "key", ["", "a", "events/", "events/1", "events/one.json", "events/-1.json", "events/1.json.tmp",
            "events/\u0661.json", "events/1e3.json", "events/" + "1" * 19 + ".json", "events/ 1.json"],
)  # fmt: skip
def test_a_key_that_is_no_number_has_none(key: str) -> None:
    """Whatever else is there is not taken for a command or an event (Law 7)."""
    assert layout.number_of(key) is None


@given(IDS, IDS, st.text(min_size=1, max_size=26))
def test_the_query_is_read_back_from_its_folder(stream_id: str, deployment_id: str, query_name: str) -> None:
    """The last part of a checkpoint's folder is the query's name (1a.12)."""
    folder = layout.checkpoint_folder(stream_id, deployment_id, query_name)
    assert layout.query_name_of(folder.rpartition("/")[2]) == query_name
    assert folder.startswith(f"{layout.checkpoints_folder(stream_id, deployment_id)}/")


def test_a_folder_of_others_is_no_query() -> None:
    """A stray folder among the checkpoints is reported."""
    with pytest.raises(InvalidRequestError):
        layout.query_name_of("lost+found")


def test_the_layout_is_as_documented() -> None:
    """The keys that others look for by hand."""
    assert layout.register_key("orders") == "orders/stream.json"
    assert layout.command_key("orders", "d-0001", 1) == "orders/deployments/d-0001/commands/00000001.json"
    assert layout.event_key("orders", "d-0001", 12) == "orders/deployments/d-0001/events/00000012.json"
    assert layout.manifest_key("orders", "s-1") == "orders/snapshots/s-1/manifest.json"
    assert layout.snapshot_data_folder("orders", "s-1", "a b") == "orders/snapshots/s-1/data/a=20b"
    assert layout.idempotency_key("orders", "r-1") == "orders/idempotency/r-1.json"


@pytest.mark.parametrize(
    ("own", "builders"),
    [
        (
            "scratch/r-0b8e3c525f0e-0001",
            {
                "run.json": layout.scratch_run_key,
                "forks/s-1/q": lambda stream, own: layout.reading_fork_folder(stream, own, "s-1", "q"),
                "launches/k": lambda stream, own: layout.launch_folder(stream, own, "k"),
                "verdict.json": layout.verdict_key,
                "waiting.json": layout.waiting_key,
                "handover.json": layout.handover_key,
                "manifest.json": layout.manifest_key,
                "checkpoints/q": lambda stream, own: layout.checkpoint_folder(stream, own, "q"),
                "data/q": lambda stream, own: layout.snapshot_data_folder(stream, own, "q"),
            },
        ),
        (
            "upgrades/u-0b8e3c525f0e",
            {
                "upgrade.json": layout.upgrade_key,
                "steps/": layout.upgrade_steps_prefix,
                "steps/00000007.json": lambda stream, own: layout.upgrade_step_key(stream, own, 7),
                "approval.json": layout.approval_key,
                "cancellation.json": layout.cancellation_key,
                "spec.json": layout.spec_key,
            },
        ),
    ],
)
def test_everything_of_a_reading_a_rehearsal_or_an_upgrade_lies_below_it(
    own: str, builders: dict[str, Callable[[str, str], str]]
) -> None:
    """Nothing of a deployment, a snapshot, or another one of these (Law 4)."""
    built = {key: build("orders", own.partition("/")[2]) for key, build in builders.items()}
    assert built == {key: f"orders/{own}/{key}" for key in builders}
