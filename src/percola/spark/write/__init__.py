"""Batch writes: each partition by itself, idempotent, or one atomic transaction."""
