"""Structured Streaming: the change feed as a source, and the sink."""
