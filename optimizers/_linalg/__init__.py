"""Inverse p-th roots of stacks of symmetric positive semidefinite matrices, batched.

    inverse_root(stack, order, *, epsilon, method="auto") -> (A + ε λ I)^(-1/order), λ the largest eigenvalue

The ridge is relative, so that the result of cA is c^(-1/order) times that of A. Methods:

- `eigh`: eigenvalues in float64, whatever the type of the stack. On a CPU faster than Newton, and several times more
  accurate.
- `eigh32`: eigenvalues in float32. About twice as fast; above a condition number of 1e4 the least accurate.
- `newton`: the coupled Newton iteration in the type of the stack, made of matrix products only (Iannazzo: On the Newton
  method for the matrix pth root, SIAM J. Matrix Anal. Appl. 28(2), 2006).
- `auto`: eigh on a CPU, as measured; Newton elsewhere, as google-research/precondition has it on TPUs. Not measured on
  any accelerator yet: `make bench-gpu` times all of them there.

`host.py` takes roots in NumPy on a thread of the host, while training goes on.

Nothing raises. A matrix that has no usable root (not finite, zero, so small that its mean eigenvalue is denormal,
singular without a ridge, or not converged) gives a result that is not finite: the caller keeps what it had. No random
numbers are drawn and no global switch is left changed.

Singular is what has an eigenvalue, the ridge included, that rounding alone could have made: that of the entries,
u ‖A‖ / n in the Frobenius norm, or that of the routine, 4 u' λ, with the units u and u' of the matrix's type and of the
routine's; Newton's least eigenvalue is found from its root, in float64. The ridge that is published, 1e-6, is above.
"""

METHODS = ("auto", "eigh", "eigh32", "newton")
HOSTED = ("auto", "eigh")  # what the host can do: NumPy decomposes in float64 whatever it is given
SOLVER = 4.0  # units of the largest eigenvalue by which the routine's others may be wrong
# Newton's settings in the official code (google-research/precondition, distributed_shampoo.py)
CAP = 100  # iterations; 9 at condition number 1e2, 26 at 1e8
FAILURE = 0.1  # largest entry of |M - I| at which a root still counts
GROWTH = 1.2  # an iterate whose error is so much larger than the last one's is not taken
