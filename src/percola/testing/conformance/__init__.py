"""The conformance tests that every store has to pass."""
