"""§2.1: what the stores on servers share."""
