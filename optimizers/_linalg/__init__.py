"""Inverse p-th roots of stacks of symmetric positive semidefinite matrices, batched.

    inverse_root(stack, order, *, epsilon, method="auto") -> (A + ε λ I)^(-1/order), λ the largest eigenvalue

The ridge is relative, so that the result for cA is c^(-1/order) times that for A. Methods:

- `eigh`: eigenvalues in float64, for every type of stack. On a CPU, this is faster than Newton and several times more
  accurate.
- `eigh32`: eigenvalues in float32. About twice as fast; the least accurate above a condition number of 1e4.
- `newton`: the coupled Newton iteration in the type of the stack, with matrix products only (Iannazzo: On the Newton
  method for the matrix pth root, SIAM J. Matrix Anal. Appl. 28(2), 2006).
- `auto`: eigh on a CPU, as measured; Newton elsewhere, as google-research/precondition uses on TPUs. This is not
  measured on accelerators yet; `make bench-gpu` times all methods there.

`host.py` computes roots in NumPy on a thread of the host during training.

No error is raised. For a matrix without a usable root (not finite, zero, with a subnormal mean eigenvalue, singular
without a ridge, or not converged), the result is not finite, and the caller keeps its previous root. No random numbers
are drawn, and global switches are restored.

A matrix is singular if its least eigenvalue, with the ridge, is within rounding error. That is the larger of the error
of the entries, u ‖A‖ / n in the Frobenius norm, and that of the routine, 4 u' λ; u and u' are the machine epsilons of
the matrix's type and of the routine's. For Newton, the least eigenvalue is computed from the root, in float64. The
published ridge, 1e-6, is larger than these errors.
"""

HOSTED = ("auto", "eigh")  # methods for the host; NumPy decomposes in float64 there
SOLVER = 4.0  # error of a routine's eigenvalues, in machine epsilons times the largest eigenvalue
# Newton's settings in the official code (google-research/precondition, distributed_shampoo.py)
CAP = 100  # iterations; 9 at condition number 1e2, 26 at 1e8
FAILURE = 0.1  # largest entry of |M - I| with which a root is accepted
GROWTH = 1.2  # an iterate whose error exceeds this multiple of the last one's is rejected
