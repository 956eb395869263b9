"""Tables whose rows lie on different devices: rank r owns rows [r · k, (r + 1) · k), and the last ones are padding.

A step reads only the rows that its batch names. `fetch` brings them, and the loss is differentiated by what was
fetched, so that the gradient is a list of (ids, rows) from the start; `gradient` hands each owner its part of it.
Shapes do not depend on values: every rank asks every other for all its ids, and gets zeros for rows the other does
not own.
"""
