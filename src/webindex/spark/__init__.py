"""Code shared by the Spark jobs of the web index."""
