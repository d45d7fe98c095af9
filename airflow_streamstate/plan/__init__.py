"""What a query's plan is, kept and compared. Standard library only, no Spark: texts go in, dataclasses come out."""
