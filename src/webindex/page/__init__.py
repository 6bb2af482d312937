"""What a page is made of: URL, text, links, directives, fingerprints."""
