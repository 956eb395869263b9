import jax

from mylab.resnet18 import blocks, convolutions
from suite.tasks._nn.jax import batch_norm, conv2d, cross_entropies


class Net:
    def apply(self, params, buffers, carry, batch, *, train, key, tap):
        new, shape = dict(buffers), {name: (kernel, stride) for name, _, _, kernel, stride in convolutions()}

        def unit(name, x):
            kernel, stride = shape[name]
            y = tap(f"{name}.conv", x, conv2d(x, params[f"{name}.conv.weight"], stride=stride, padding=kernel // 2))
            y, statistics = batch_norm(y, buffers, f"{name}.norm", train=train, group=64)
            new.update(statistics)
            return y * params[f"{name}.norm.weight"] + params[f"{name}.norm.bias"]

        x = jax.nn.relu(unit("stem", batch["image"].transpose(0, 2, 3, 1)))
        for name, _, _, stride in blocks():
            y = unit(f"{name}b", jax.nn.relu(unit(f"{name}a", x)))
            x = jax.nn.relu(y + (unit(f"{name}s", x) if stride != 1 else x))
        x = x.mean((1, 2))
        return {"logits": tap("fc", x, x @ params["fc.weight"].T + params["fc.bias"])}, new, carry

    def loss(self, outputs, batch):
        return (cross_entropies(outputs["logits"], batch["label"]) * batch["weight"]).sum(), batch["weight"].sum()


def make(task):
    return Net()
