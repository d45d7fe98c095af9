"""The whole life of a stream on real flights: deployed, snapshotted, upgraded twice, and every row compared.

``python -m demo`` runs it; ``life`` is the story, ``feed`` the input, ``airflow_site`` a real Airflow on loopback,
``compare`` the judge, ``timeline`` and ``page`` what the person sees.
"""
