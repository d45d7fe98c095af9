"""Inside the Spark driver: runs an unmodified script, and obeys the commands of its deployment.

``attempt``, ``starting``, ``ending`` and ``agent`` decide; ``spark`` is the only room that touches pyspark. What the
first need of the second is ``attempt.ports``, so that the deciding half runs against simulated queries too.
"""
