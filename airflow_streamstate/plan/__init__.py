"""A query's plan, kept and compared. Standard library only, no Spark: texts go in, dataclasses come out."""
