"""Loading captures into the repository, in transactions."""
