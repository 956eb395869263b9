"""Plans the stages of a model for a number of devices, by the suite's rules or by RaNNC's."""

from suite.comm.partition import rannc
from suite.comm.partition.graph import Graph
from suite.comm.partition.plan import Plan
from suite.comm.partition.planner import search
from suite.comm.partition.planner.request import Request, check


def plan(graph: Graph, request: Request) -> Plan:
    """Return the plan with the shortest predicted step.

    Raises:
        UserError: if the request contradicts itself, the model cannot be cut, or it does not fit.
    """
    check(request)
    return rannc.plan(graph, request) if request.rannc_compat else search.plan(graph, request)
