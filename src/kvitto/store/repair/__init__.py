"""Tools for a data directory on which no broker runs: they find damage, and save what can be read. Used by `kvitto check` and `salvage`."""
