"""The audit of a stream: handovers, repeated batches, downtimes, periods in which nothing ran."""
