"""Airflow in a home of its own."""

from support.airflow_fixtures import context, named

__all__ = ["context", "named"]
