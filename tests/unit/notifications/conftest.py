"""Airflow in its own home."""

from support.airflow_fixtures import context, named

__all__ = ["context", "named"]
