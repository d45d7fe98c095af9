"""The options of the section ``[streamstate]`` of Airflow's configuration, as ``provider_info`` describes them."""

from __future__ import annotations

from airflow.providers.common.compat.sdk import conf

SECTION = "streamstate"
POLL_INTERVAL_SECONDS = 2.0
POKE_INTERVAL_SECONDS = 10.0
TRIGGER_THREADS = 32
PAGE_CONN_IDS = "streamstate_default"


def poll_interval_seconds() -> float:
    """Seconds between two looks of an operator that waits, where the operator says nothing."""
    return float(conf.getfloat(SECTION, "poll_interval_seconds", fallback=POLL_INTERVAL_SECONDS))


def poke_interval_seconds() -> float:
    """Seconds between two looks of a sensor, where the sensor says nothing."""
    return float(conf.getfloat(SECTION, "poke_interval_seconds", fallback=POKE_INTERVAL_SECONDS))


def trigger_threads() -> int:
    """How many threads of a triggerer look at homes."""
    return int(conf.getint(SECTION, "trigger_threads", fallback=TRIGGER_THREADS))


def restart_in_triggerer() -> bool:
    """Whether triggerers do what ``streamstate watch`` does."""
    return bool(conf.getboolean(SECTION, "restart_in_triggerer", fallback=False))


def page_conn_ids() -> tuple[str, ...]:
    """The connections whose homes the page of streams shows."""
    said = conf.get(SECTION, "page_conn_ids", fallback=PAGE_CONN_IDS)
    return tuple(dict.fromkeys(name.strip() for name in str(said).split(",") if name.strip()))
