"""§2.1: the store on Google Bigtable."""
