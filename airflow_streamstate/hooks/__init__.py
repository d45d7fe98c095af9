"""From Airflow to the controller: the hook, and what operators, sensors and the trigger share below it.

``connection`` turns a connection into a home, ``streamstate`` has the hook, ``spark_connection`` adapts the
apache-spark provider, ``refusals`` maps errors to Airflow's.
"""
