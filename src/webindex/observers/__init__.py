"""The observers of the web index, from a capture to its document."""
