"""Reduction algorithms: compute the mean over ranks with a codec and a transport. One folder each."""
