"""From an Airflow connection to the lifecycle: the one room below operators, sensors and triggers that knows both.

``connection`` turns a connection into a home, ``streamstate`` is the hook, which gives the client,
``spark_connection`` is the adapter to the apache-spark provider, ``refusals`` is the one mapping of errors to Airflow.
"""
