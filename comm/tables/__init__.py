"""Tables split by rows over devices: rank r owns rows [r · k, (r + 1) · k); the last rows are padding.

A step reads only the rows that its batch names. `fetch_rows` gathers them, and the loss is differentiated with respect
to these rows, so that the gradient is a list of (ids, rows); `sum_gradient` sends each owner its part of the list.
Shapes do not depend on values: every rank asks every other rank for all its ids, and receives zeros for rows that the
other rank does not own.
"""
