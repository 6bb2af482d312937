"""§2.4: observers, and the workers that run them."""
