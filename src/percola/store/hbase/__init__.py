"""§2.1: the store on Apache HBase, through its Java client."""
