"""§2.4: locks and liveness on one machine, by file locks."""
