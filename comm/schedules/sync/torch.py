"""After the backward pass, in torch."""

from suite.comm.schedules._base.torch import Schedule

make = Schedule
