"""Savepoints, drains and safe upgrades for stateful Spark Structured Streaming, driven from Airflow.

The root imports nothing, so that a Spark driver which imports one room never imports Airflow.
"""
