"""What algorithms and topologies are made of: rows to their owners, added up, and rows from their owners to all.

Encoded piece by piece, as channels say. In torch a piece is on its way while the next one is encoded or the last one
decoded. In jax XLA runs one collective after another, but pieces help there, too: between CPU processes, gloo tells a
sender that it may begin over the connection that carries what goes the other way, and that word waits behind it.
"""
