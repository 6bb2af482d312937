"""§2.2: transactions with snapshot isolation."""
