"""Somebody is told that it goes on."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_streamstate.snapshot import meanwhile
from airflow_streamstate.snapshot.meanwhile import until_done


def test_it_is_told_until_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Again and again; then the result is given, or what was raised."""
    monkeypatch.setattr(meanwhile, "LOOK_SECONDS", 0.001)
    end = threading.Event()
    told: list[int] = []

    def go_on() -> None:
        told.append(1)
        if len(told) == 3:
            end.set()

    with ThreadPoolExecutor(1) as pool:
        assert until_done(pool.submit(end.wait, 20), go_on) is True
        assert len(told) >= 3
        with pytest.raises(ZeroDivisionError):
            until_done(pool.submit(lambda: 1 // 0), go_on)


def test_whoever_gives_up_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in the middle."""
    monkeypatch.setattr(meanwhile, "LOOK_SECONDS", 0.001)
    end = threading.Event()

    def stop() -> None:
        raise InterruptedError

    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(InterruptedError):
            until_done(pool.submit(end.wait, 20), stop)
        end.set()
