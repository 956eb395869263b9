"""Coder: applies a codec to one named array, and adds the error of each encoding to the array's next values.

That is error feedback (Seide et al. 2014, section 3; Karimireddy et al. 2019, algorithm 2). Every place that encodes
has its own slot: what a rank sends to the owners of the chunks (`worker`), what an owner sends back (`server`),
each hop of a ring. So over many steps what was sent plus what is remembered is the sum of what should have been sent.
"""
