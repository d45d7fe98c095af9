"""How a deployment ends: stop (1a.4), drain (1a.5), or the end of the script.

Once an attempt is replaced, every wait in this package raises FencedError (Law 4).
"""
