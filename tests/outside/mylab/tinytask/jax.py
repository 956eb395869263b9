import jax
import jax.numpy as jnp

from suite import stream
from suite.tasks._nn.jax import batch_norm, conv2d, draw_labels


class Net:
    def apply(self, params, buffers, carry, batch, *, train, key, tap):
        p = params
        image = batch["image"].transpose(0, 2, 3, 1)
        y = tap("conv", image, conv2d(image, p["conv.weight"], stride=2, padding=1))
        z, new = batch_norm(y, buffers, "norm", train=train, group=4)
        x = jnp.tanh(tap("norm", z, z * p["norm.weight"] + p["norm.bias"])).mean((1, 2))
        rows = batch["embed.weight.rows"] if "embed.weight.rows" in batch else p["embed.weight"][batch["token"]]
        x = x + tap("embed", batch["token"], rows).mean(1)
        outputs = {"label": batch["label"]} if train else {"label": batch["label"], "weight": batch["weight"]}
        if train:
            carry = {"memory": 0.5 * carry["memory"] + 0.1 * x}
            x = x + jax.lax.stop_gradient(carry["memory"])
        return outputs | {"logits": tap("fc", x, x @ p["fc.weight"].T + p["fc.bias"])}, buffers | new, carry

    def lookups(self, batch):
        return {"embed.weight": batch["token"]}

    def loss(self, outputs, batch):
        picked = jnp.take_along_axis(jax.nn.log_softmax(outputs["logits"]), outputs["label"][:, None], 1)[:, 0]
        return -(picked * batch["weight"]).sum(), batch["weight"].sum()

    def sample(self, outputs, key, batch):
        label = draw_labels(outputs["logits"], stream.uniform(jnp, key, "label", batch["index"]))
        return outputs | {"label": label.astype(outputs["label"].dtype)}


def make(task):
    return Net()
