"""Communication: codecs, the reductions they compose into, and the transports that move their bytes."""
