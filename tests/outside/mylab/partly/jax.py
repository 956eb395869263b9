from mylab.tinytask.jax import make as make
