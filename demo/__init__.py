"""The whole life of a stream on real flights: deployed, snapshotted, upgraded twice, and every row compared.

``python -m demo`` runs it: ``life`` has the sequence, ``feed`` the input, ``compare`` the comparison of rows,
``timeline`` and ``page`` the report. Airflow runs on loopback.
"""
