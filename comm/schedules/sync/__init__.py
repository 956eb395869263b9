"""Send gradients after the backward pass."""

from suite.comm.projection.timeline import project_sync as projected

__all__ = ["CITATION", "REMEMBERS", "SUMMARY", "projected"]

SUMMARY = "send after the backward pass"
CITATION = ""
REMEMBERS = False
