"""§2.4: locks and liveness through ZooKeeper."""
