"""A small transformer on many devices and many hosts: data parallel, or with FSDP.

    python examples/many_hosts.py                          # the devices of this process; CPUs: 8
    python examples/many_hosts.py --processes 4 --fsdp     # four processes, as on four hosts
    srun python examples/many_hosts.py --cluster           # one of the processes of a cluster

Every process runs this same file. It reads only the windows that its devices need, and all print
the same losses, whatever the number of processes and the mesh. The data: each token is one, two or
three more than the one before, so no loss is below ln 3 = 1.10 nats.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec

import cereal

VOCABULARY, CONTEXT, WIDTH, HEADS, LAYERS, BATCH = 64, 32, 64, 4, 2, 32
optimizer = optax.adam(3e-3)


def write_tokens(path: Path) -> None:
    steps = np.random.default_rng(0).integers(1, 4, 200_000)
    np.save(path, (np.cumsum(steps) % VOCABULARY).astype(np.uint16))


def init(key: jax.Array) -> Any:
    """The parameters and the state of the optimizer."""
    shapes = {"token": (VOCABULARY, WIDTH), "place": (CONTEXT, WIDTH)}
    shapes |= {"qkv": (LAYERS, WIDTH, 3 * WIDTH), "out": (LAYERS, WIDTH, WIDTH)}
    shapes |= {"up": (LAYERS, WIDTH, 4 * WIDTH), "down": (LAYERS, 4 * WIDTH, WIDTH)}
    ends = np.cumsum([np.prod(shape) for shape in shapes.values()])
    numbers = jnp.split(0.05 * jax.random.normal(key, ends[-1:]), ends[:-1])
    params = {name: x.reshape(shapes[name]) for name, x in zip(shapes, numbers, strict=True)}
    return params, optimizer.init(params)


def losses_of(params: Any, windows: jax.Array) -> jax.Array:
    """One loss per window: each token from those before it, in nats."""

    def block(x: jax.Array, layer: Any) -> tuple[jax.Array, None]:
        q, k, v = jnp.split(jax.nn.standardize(x) @ layer["qkv"], 3, axis=-1)
        q, k, v = (each.reshape(*x.shape[:2], HEADS, -1) for each in (q, k, v))
        seen = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + seen.reshape(x.shape) @ layer["out"]
        return x + jax.nn.gelu(jax.nn.standardize(x) @ layer["up"]) @ layer["down"], None

    layers = {name: params[name] for name in ("qkv", "out", "up", "down")}
    x, _ = jax.lax.scan(block, params["token"][windows[:, :-1]] + params["place"], layers)
    logits, next_ones = jax.nn.standardize(x) @ params["token"].T, windows[:, 1:].astype(jnp.int32)
    return optax.softmax_cross_entropy_with_integer_labels(logits, next_ones).mean(axis=1)


def step(train: Any, windows: jax.Array, mask: jax.Array) -> tuple[Any, jax.Array]:
    def loss_of(params: Any) -> jax.Array:
        return cereal.masked_mean(losses_of(params, windows), mask)

    loss, grads = jax.value_and_grad(loss_of)(train[0])
    updates, opt_state = optimizer.update(grads, train[1], train[0])
    return (optax.apply_updates(train[0], updates), opt_state), loss


def placed(mesh: Any, array: Any) -> NamedSharding:
    """FSDP: the longest axis of an array is spread over `fsdp`. Without that axis: whole copies."""
    size = mesh.shape.get("fsdp", 1)
    fits = [n if n % size == 0 else 0 for n in array.shape]
    if size == 1 or not any(fits):
        return NamedSharding(mesh, PartitionSpec())
    longest = fits.index(max(fits))
    return NamedSharding(mesh, PartitionSpec(*[None] * longest, "fsdp"))


def main(steps: int, axes: dict[str, int]) -> list[float]:
    mesh = cereal.mesh(**axes)
    over = tuple(name for name in mesh.axis_names if name in ("data", "fsdp"))
    with tempfile.TemporaryDirectory() as folder:
        write_tokens(Path(folder, "tokens.npy"))
        tokens = np.load(f"{folder}/tokens.npy", mmap_mode="r")
        pipeline = [cereal.WindowSource(tokens, CONTEXT + 1), cereal.BatchTransform(BATCH)]
        loader = cereal.DataLoader(pipeline, sharding=(mesh, over), workers=1)

        where = jax.tree.map(lambda x: placed(mesh, x), jax.eval_shape(init, jax.random.key(0)))
        train = jax.jit(init, out_shardings=where)(jax.random.key(0))
        step_fn = jax.jit(step, out_shardings=(where, None), donate_argnums=0)
        losses, state = [], loader.init_state(1)
        for part in (steps // 2, steps - steps // 2):  # stops half way and goes on from the state
            batches = loader.iterate(state, steps=part)
            for windows, mask in batches:
                train, loss = step_fn(train, windows, mask)
                losses.append(loss)
            state = batches.state
        loader.close()
    parts = {str(each.index): len(each.data) for each in windows.addressable_shards}
    held = sum(each.addressable_shards[0].data.size for each in train[0].values())
    print(
        f"process {jax.process_index()} of {jax.process_count()}, {len(jax.local_devices())} "
        f"devices of the mesh {dict(mesh.shape)}: {sum(parts.values())} of {BATCH} windows of a "
        f"batch, {held} of {sum(each.size for each in train[0].values())} parameters per device"
    )
    return [float(loss) for loss in losses]


def start_here(processes: int, options: list[str]) -> int:
    """Runs this file in several processes on the CPUs of this machine; the worst exit code."""
    with socket.socket() as found:
        found.bind(("localhost", 0))
        address = f"localhost:{found.getsockname()[1]}"
    command = [sys.executable, __file__, *options, "--processes", str(processes)]
    more = [["--join", address, "--number", str(number)] for number in range(processes)]
    on_cpus = {**os.environ, "JAX_PLATFORMS": "cpu"}
    children = [subprocess.Popen([*command, *each], env=on_cpus) for each in more]
    return max(abs(child.wait()) for child in children)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--fsdp", action="store_true", help="spread the parameters, too")
    parser.add_argument("--processes", type=int, default=1, help="to start on this machine")
    parser.add_argument("--cluster", action="store_true", help="of Slurm, Kubernetes, TPU hosts")
    parser.add_argument("--join", help=argparse.SUPPRESS)  # where a process started here finds all
    parser.add_argument("--number", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.processes > 1 and not given.join:
        sys.exit(start_here(given.processes, sys.argv[1:]))
    if given.join:
        jax.distributed.initialize(given.join, given.processes, given.number)
    elif given.cluster:
        jax.distributed.initialize()  # the cluster says who we are
    if not given.cluster:
        jax.config.update("jax_num_cpu_devices", max(1, 8 // given.processes))
    losses = main(given.steps, {"data": 2, "fsdp": -1} if given.fsdp else {"data": -1})
    if jax.process_index() == 0:
        print("losses, every fifth:", *(f"{loss:.4f}" for loss in losses[::5]))
