"""The half that touches pyspark: what ``attempt.ports`` asks for, and the places where pyspark is patched."""
