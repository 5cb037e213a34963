"""The level of a cluster says which forms of files, of records of the stream and of the document its nodes may write (docs/adr/0039).

A Kvitto reads all levels up to LEVEL and writes the one that the cluster's document names, so that each node can read what any leader has
written. When all nodes have been updated an operator raises the level of the document (`kvitto ctl cluster_upgrade`). A node that does not
know the document's level does not follow, and does not lead.
"""

FIRST = 1
"""The level of a node that does not say which one it knows."""
LEVEL = 1
"""The highest level that this Kvitto knows. A change that makes Kvitto write what an earlier one could not read raises it by one."""
