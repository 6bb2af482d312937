"""§2.4: the lightweight lock service, run by the oracle."""
