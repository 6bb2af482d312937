"""Takedown: removes pages by request, and keeps them from being loaded again."""
