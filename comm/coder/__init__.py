"""A codec at work on one named array: it remembers what was lost, and adds it to what comes next under the same name.

That is error feedback (Seide et al. 2014, section 3; Karimireddy et al. 2019, algorithm 2). Every place that encodes
has a slot of its own: what a rank sends to the owners of the chunks (`worker`), what an owner sends back (`server`),
each hop of a ring. So over many steps what was sent plus what is remembered is the sum of what should have been sent.
"""
