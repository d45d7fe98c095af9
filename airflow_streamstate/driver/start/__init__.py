"""How an attempt and its queries start: the claim, a query's name, its checkpoint, its repair and its start (1a.10)."""
