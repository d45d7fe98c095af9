"""Savepoints, drains and safe upgrades for stateful Spark Structured Streaming, driven from Airflow.

The root imports nothing, so that a Spark driver which imports one room never imports Airflow.
"""

__version__ = "0.1.0"  # the one place: the build, the provider's description and the claims of drivers read it
