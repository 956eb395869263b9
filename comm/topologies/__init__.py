"""Topologies: map a reduction to groups of ranks, all ranks or host by host. One folder each."""
