"""A web index kept up to date page by page: the application the Percolator paper was built for."""
