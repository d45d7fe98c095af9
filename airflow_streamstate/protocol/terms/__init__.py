"""What a caller decides about a verb: each term is declared once, and every surface is made from its declaration."""
