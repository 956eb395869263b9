"""Reduction algorithms: how ranks turn their arrays into a mean, given a codec and a transport. One folder each."""
