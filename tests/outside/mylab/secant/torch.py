from concurrent.futures import ThreadPoolExecutor

import torch

from mylab.secant import INTERVAL, LAG, scale


class Secant(torch.optim.Optimizer):
    def __init__(self, parameters, *, lr=0.1):
        super().__init__(parameters, {"lr": lr})
        group, self.pool, self.future = self.param_groups[0], ThreadPoolExecutor(1), None
        self.named = dict(zip(group["param_names"], group["params"], strict=True))
        like = next(iter(self.named.values())).detach()
        ones = {n: torch.ones_like(p) for n, p in self.named.items()}
        snapshot = {n: p.clone() for n, p in ones.items()}
        self.state["secant"] = {"curvature": ones, "scale": like.new_ones(()), "due": -1, "pending": snapshot}

    def host(self, step):
        state = self.state["secant"]
        if state["due"] == step:
            found = self.future.result() if self.future else scale(state["pending"])
            state["scale"].fill_(found)
            self.future, state["due"] = None, -1
        if step and step % INTERVAL == 0:
            state["pending"] = {n: c.clone() for n, c in state["curvature"].items()}
            state["due"], self.future = step + LAG, self.pool.submit(scale, state["pending"])

    def drain(self):
        if self.future:
            self.future.result()

    @torch.no_grad()
    def step(self, closure=None, *, evaluate, reduce):
        state, grads = self.state["secant"], {n: p.grad for n, p in self.named.items()}
        lr = self.param_groups[0]["lr"]  # not of a group that was kept: a restored state comes with new ones
        for n, p in self.named.items():
            p.sub_(lr * state["scale"] * grads[n])
        after = reduce.mean("after", evaluate()[1])
        for n, c in state["curvature"].items():
            c.mul_(0.9).add_(0.1 * (after[n] - grads[n]) ** 2)


make = Secant
