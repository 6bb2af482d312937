"""§2.1: code shared by the stores on servers (HBase, Bigtable)."""
