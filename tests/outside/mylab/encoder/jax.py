import jax
import jax.numpy as jnp

from mylab.encoder import DEPTH, HEADS, LENGTH, WIDTH


class Net:
    def apply(self, params, buffers, carry, batch, *, train, key, tap):
        def linear(name, x):
            return tap(name, x, x @ params[f"{name}.weight"].T + params[f"{name}.bias"])

        def norm(name, x):
            x = x - x.mean(-1, keepdims=True)
            x = x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5)
            return x * params[f"{name}.weight"] + params[f"{name}.bias"]

        x = params["words.weight"][batch["tokens"]] + params["places.weight"]
        for layer in range(DEPTH):
            at, y = f"layer{layer}", norm(f"layer{layer}.norm1", x)
            split = lambda name, at=at, y=y: linear(f"{at}.{name}", y).reshape(-1, LENGTH, HEADS, WIDTH // HEADS)  # noqa: E731
            y = jax.nn.dot_product_attention(split("query"), split("key"), split("value"))
            x = x + linear(f"{at}.out", y.reshape(-1, LENGTH, WIDTH))
            x = x + linear(f"{at}.down", jax.nn.gelu(linear(f"{at}.up", norm(f"{at}.norm2", x))))
        return {"logits": linear("head", x)}, buffers, carry

    def loss(self, outputs, batch):
        log = jax.nn.log_softmax(outputs["logits"])
        losses = -jnp.take_along_axis(log, batch["tokens"][..., None], -1)[..., 0].mean(1)
        return (losses * batch["weight"]).sum(), batch["weight"].sum()


def make(task):
    return Net()
