"""Airflow notifiers of alerts about streams."""
