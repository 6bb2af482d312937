"""§2.1: garbage collection of old versions."""
