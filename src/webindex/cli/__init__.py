"""The command line of the web index."""
