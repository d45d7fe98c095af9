"""Taking over a query that was never ours: barred from outside, copied, and gone on with as a stream."""
