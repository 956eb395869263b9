"""How arrays are laid out before a codec sees them; nothing is lost. Buckets of gradients are in `suite.comm.channel`.

A symmetric matrix travels as its lower triangle, row by row: number row (row + 1) / 2 + column, as in SP-NGD's code
(Osawa et al. 2019, arXiv:1811.12019, section 5.2).
"""
