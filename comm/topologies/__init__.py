"""Which ranks talk to which: all with all, or host by host. A folder each; they map a reduction to groups of ranks."""
