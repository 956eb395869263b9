from mylab.tinytask.torch import make as make
