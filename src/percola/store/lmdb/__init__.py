"""§2.1: the store on one machine, an LMDB file that all processes map."""
