"""Reading crawls: WARC files and the HTTP messages in them."""
