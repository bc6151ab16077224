"""JAX: batches arrive as arrays on the default device; the loop is a jitted function."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from digits import digits, folder, held_out

Weights = list[tuple[jax.Array, jax.Array]]


def main() -> None:
    weights = layers(jax.random.key(0), [64, 64, 10])
    stream = digits(folder()).stream(batch_size=64, output="jax", last="drop")
    for epoch in range(20):
        stream.set_epoch(epoch)
        for batch in stream:  # last="drop": one shape, so it is compiled once
            weights, loss = step(weights, batch["image"], batch["label"])
    print(f"loss of the last batch: {loss:.3f}")
    images, labels = held_out()
    accuracy = (guess(weights, jnp.asarray(images)).argmax(1) == jnp.asarray(labels)).mean()
    print(f"accuracy on pictures it never saw: {accuracy:.1%}")


def layers(key: Any, sizes: list[int]) -> Weights:
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        (jax.random.normal(one, (rows, columns)) / rows**0.5, jnp.zeros(columns))
        for one, rows, columns in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def guess(weights: Weights, images: jax.Array) -> jax.Array:
    for factor, offset in weights[:-1]:
        images = jax.nn.relu(images @ factor + offset)
    factor, offset = weights[-1]
    return images @ factor + offset


@jax.jit
def step(weights: Weights, images: jax.Array, labels: jax.Array) -> tuple[Weights, jax.Array]:
    def loss_of(weights: Weights) -> jax.Array:
        inputs = images.reshape(len(images), -1).astype(jnp.float32) / 16
        chosen = jax.nn.log_softmax(guess(weights, inputs))[jnp.arange(len(labels)), labels]
        return -chosen.mean()

    loss, slopes = jax.value_and_grad(loss_of)(weights)
    return jax.tree.map(lambda weight, slope: weight - 0.3 * slope, weights, slopes), loss


if __name__ == "__main__":
    main()
