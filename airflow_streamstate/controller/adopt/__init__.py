"""Adoption: a query that ran without streamstate gets a barrier, is copied, and becomes a stream."""
