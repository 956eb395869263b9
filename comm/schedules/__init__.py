"""When gradients travel: after the backward pass, during it, or during the next step. A folder each."""
