"""What the Spark jobs of the web index share."""
