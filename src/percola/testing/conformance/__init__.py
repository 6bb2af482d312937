"""The claims that every store has to meet."""
