"""The search index on Tantivy."""
