"""Workers of the web index: as processes, or as Spark tasks."""
