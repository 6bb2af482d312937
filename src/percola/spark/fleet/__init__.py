"""Workers that run as Spark tasks."""
