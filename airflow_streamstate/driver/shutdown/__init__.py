"""How a deployment ends: stop (1a.4), drain (1a.5), or the script is done."""
