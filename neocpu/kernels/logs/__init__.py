"""How does a click log become numbers? Tokens, hashes, and a synthetic log."""
