"""Arrays of any type as one message of bytes, because jax on CPUs sends some types as wider ones."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from suite.comm.codecs._codec import Codec
from suite.comm.partition.jax.tape import nbytes

Shape = jax.ShapeDtypeStruct


def count_bytes(shapes: Sequence[Shape]) -> int:
    """Bytes of the message with arrays of these shapes."""
    return sum(nbytes(_plain(shape)) for shape in shapes)


def pack_values(values: Sequence[Array]) -> Array:
    """Arrays as one message, (bytes,) uint8."""
    return jnp.concatenate([_to_bytes(value) for value in values])


def unpack_values(message: Array, shapes: Sequence[Shape]) -> list[Array]:
    """Return the arrays of a message (bytes,)."""
    values, start = [], 0
    for shape in shapes:
        end = start + nbytes(_plain(shape))
        values.append(_from_bytes(message[start:end], shape))
        start = end
    return values


def encode_values(values: Sequence[Array], codec: Codec) -> list[Array]:
    """Payloads of the floating-point numbers; other arrays as they are."""
    return [codec.encode(value.reshape(-1)) if _coded(value) else value for value in values]


def decode_values(payloads: Sequence[Array], shapes: Sequence[Shape], codec: Codec) -> list[Array]:
    """Return the arrays that `encoded` was given, as the receiver sees them."""
    return [
        codec.decode(payload, jnp.zeros(shape.size, shape.dtype)).reshape(shape.shape) if _coded(shape) else payload
        for payload, shape in zip(payloads, shapes, strict=True)
    ]


def list_payloads(shapes: Sequence[Shape], codec: Codec) -> list[Shape]:
    """List the shapes of what `encoded` returns."""
    return list(jax.eval_shape(lambda values: encode_values(values, codec), list(shapes)))


def _coded(value: Array | Shape) -> bool:
    """Return whether a codec may encode an array; integers, such as words and masks, and PRNG keys must stay exact."""
    return value.dtype in (jnp.float32, jnp.float64)


def _plain(shape: Shape) -> Shape:
    """Return the shape of the words of PRNG keys; other shapes as they are."""
    if not jnp.issubdtype(shape.dtype, jax.dtypes.prng_key):
        return shape
    words = jax.eval_shape(jax.random.key_data, shape)
    return Shape(words.shape, words.dtype)


def _to_bytes(value: Array) -> Array:
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    if value.dtype == jnp.bool_:
        value = value.astype(jnp.uint8)
    if jnp.iscomplexobj(value):
        value = jnp.stack([value.real, value.imag], -1)
    return lax.bitcast_convert_type(value, jnp.uint8).reshape(-1)


def _from_bytes(message: Array, shape: Shape) -> Array:
    plain = _plain(shape)
    if shape.dtype == jnp.bool_:
        return message.reshape(shape.shape).astype(jnp.bool_)
    if jnp.issubdtype(shape.dtype, jnp.complexfloating):
        part = jnp.finfo(shape.dtype).dtype
        pairs = _words(message, Shape((*shape.shape, 2), part))
        return lax.complex(pairs[..., 0], pairs[..., 1])
    words = _words(message, plain)
    if plain is shape:
        return words
    return jax.random.wrap_key_data(words, impl=_implementation(shape))


def _implementation(shape: Shape) -> Any:
    """Return the generator of PRNG keys, which jax tells only of arrays."""
    known = []
    jax.eval_shape(lambda key: known.append(jax.random.key_impl(key)), shape)
    return known[0]


def _words(message: Array, shape: Shape) -> Array:
    size = shape.dtype.itemsize
    rows = message.reshape(*shape.shape, size) if size > 1 else message.reshape(shape.shape)
    assert math.prod(rows.shape) == message.size
    return lax.bitcast_convert_type(rows, shape.dtype)
