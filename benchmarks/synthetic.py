"""Throughput of training on random data, printed as Horovod's synthetic benchmarks print it: images or tokens a second.

    python benchmarks/synthetic.py torch --model resnet -np 1 2                # scaling from 1 to 2 ranks
    python benchmarks/synthetic.py torch --model mlp -np 2 --beside gloo       # DDP on gloo, in turns with Ronde
    python benchmarks/synthetic.py jax --model transformer -np 1 2 --plot scaling.svg --json scaling.json
    horovodrun -np 2 python benchmarks/synthetic.py torch --library horovod.torch     # where Horovod is installed

Frameworks: torch (`DistributedOptimizer`; with `--ddp` DDP on the backend "ronde"), tensorflow
(`DistributedGradientTape`), keras (`train_on_batch`), jax (`distributed` optax). Models: a ResNet of three blocks on
images of 32 x 32, an MLP of three layers, a transformer of two blocks on sequences of 64 tokens. Each rank has a batch
of its own (weak scaling) and one core's thread. Runs of Ronde and of gloo alternate; the ratio is the median of those
of neighbouring runs.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
CLASSES, WIDTH, HEADS, LENGTH, VOCABULARY = 10, 128, 4, 64, 1000
Step = Callable[[], Any]


def data(model: str, batch: int, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Random inputs and labels; images have their channels last."""
    numbers = np.random.default_rng(rank)
    if model == "transformer":
        x = numbers.integers(VOCABULARY, size=(batch, LENGTH))
        return x.astype(np.int32), np.roll(x, -1, axis=1).astype(np.int32)
    shape = (batch, 784) if model == "mlp" else (batch, 32, 32, 3)
    return numbers.normal(size=shape).astype(np.float32), numbers.integers(CLASSES, size=batch).astype(np.int32)


# ---- torch


def torch_model(name: str) -> Any:
    import torch
    from torch import nn

    class Residual(nn.Module):
        def __init__(self, width: int, out: int, stride: int) -> None:
            super().__init__()
            self.one, self.two = (
                nn.Conv2d(width, out, 3, stride, 1, bias=False),
                nn.Conv2d(out, out, 3, 1, 1, bias=False),
            )
            self.first, self.second = nn.BatchNorm2d(out), nn.BatchNorm2d(out)
            self.short = nn.Conv2d(width, out, 1, stride, bias=False)

        def forward(self, x: Any) -> Any:
            inner = self.second(self.two(torch.relu(self.first(self.one(x)))))
            return torch.relu(inner + self.short(x))

    class Transformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(VOCABULARY, WIDTH)
            block = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.0, batch_first=True)
            self.blocks = nn.TransformerEncoder(block, 2)
            self.head = nn.Linear(WIDTH, VOCABULARY)

        def forward(self, x: Any) -> Any:
            return self.head(self.blocks(self.embedding(x))).flatten(0, 1)

    if name == "mlp":
        return nn.Sequential(
            nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, CLASSES)
        )
    if name == "transformer":
        return Transformer()
    start = nn.Conv2d(3, 16, 3, padding=1, bias=False)
    blocks = [Residual(16, 16, 1), Residual(16, 32, 2), Residual(32, 64, 2)]
    return nn.Sequential(start, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES))


def torch_step(options: argparse.Namespace) -> tuple[Step, int, int]:
    import torch

    torch.set_num_threads(1)
    model = torch_model(options.model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if options.ddp or options.backend == "gloo":
        import torch.distributed as dist

        if options.backend == "ronde":
            importlib.import_module("ronde.torch.distributed")
        dist.init_process_group(options.backend)
        rank, size = dist.get_rank(), dist.get_world_size()
        run = torch.nn.parallel.DistributedDataParallel(model)
    else:
        hvd = importlib.import_module(options.library or "ronde.torch")
        hvd.init()
        rank, size, run = hvd.rank(), hvd.size(), model
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    given, labels = data(options.model, options.batch_size, rank)
    x, y = torch.from_numpy(given), torch.from_numpy(labels).long().flatten()
    x = x.permute(0, 3, 1, 2).contiguous() if options.model == "resnet" else x

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(run(x), y).backward()
        optimizer.step()

    return step, rank, size


# ---- TensorFlow and Keras


def keras_model(name: str) -> Any:
    from keras import Input, Model, Sequential, layers

    if name == "mlp":
        inner = [layers.Dense(1024, "relu"), layers.Dense(1024, "relu"), layers.Dense(CLASSES)]
        return Sequential([Input((784,)), *inner])
    if name == "transformer":
        x = tokens = Input((LENGTH,), dtype="int32")
        x = layers.Embedding(VOCABULARY, WIDTH)(tokens)
        for _ in range(2):
            x = layers.LayerNormalization()(x + layers.MultiHeadAttention(HEADS, WIDTH // HEADS)(x, x))
            x = layers.LayerNormalization()(x + layers.Dense(WIDTH)(layers.Dense(4 * WIDTH, "relu")(x)))
        return Model(tokens, layers.Dense(VOCABULARY)(x))
    images = Input((32, 32, 3))
    x = layers.Conv2D(16, 3, padding="same", use_bias=False)(images)
    for out, stride in ((16, 1), (32, 2), (64, 2)):
        inner = layers.BatchNormalization()(layers.Conv2D(out, 3, stride, "same", use_bias=False)(x))
        inner = layers.Conv2D(out, 3, padding="same", use_bias=False)(layers.ReLU()(inner))
        short = layers.Conv2D(out, 1, stride, use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization()(inner) + short)
    return Model(images, layers.Dense(CLASSES)(layers.GlobalAveragePooling2D()(x)))


def tensorflow_step(options: argparse.Namespace) -> tuple[Step, int, int]:
    import keras
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    hvd = importlib.import_module(options.library or "ronde.tensorflow")
    hvd.init()
    model, optimizer = keras_model(options.model), keras.optimizers.SGD(0.01)
    optimizer.build(model.trainable_variables)
    hvd.broadcast_variables(model.variables, root_rank=0)
    x, y = (tf.constant(array) for array in data(options.model, options.batch_size, hvd.rank()))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True))
        gradients = hvd.DistributedGradientTape(tape).gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return value

    return lambda: step().numpy(), hvd.rank(), hvd.size()


def keras_step(options: argparse.Namespace) -> tuple[Step, int, int]:
    import keras

    hvd = importlib.import_module(options.library or "ronde.keras")
    hvd.init()
    model = keras_model(options.model)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), loss)
    x, y = data(options.model, options.batch_size, hvd.rank())
    hvd.broadcast_variables(model.variables, root_rank=0)
    return lambda: model.train_on_batch(x, y), hvd.rank(), hvd.size()


# ---- JAX


def jax_model(name: str) -> tuple[Any, Callable[[Any, Any], Any]]:
    """The parameters, and the function from them and a batch to logits."""
    import jax
    import jax.numpy as jnp

    numbers = np.random.default_rng(0)

    def new(*shape: int) -> Any:
        return jnp.asarray(numbers.normal(size=shape) / np.sqrt(np.prod(shape[:-1])), jnp.float32)

    def conv(x: Any, w: Any, stride: int = 1) -> Any:
        return jax.lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def norm(x: Any, axes: tuple[int, ...]) -> Any:
        return (x - x.mean(axes, keepdims=True)) / jnp.sqrt(x.var(axes, keepdims=True) + 1e-5)

    if name == "mlp":
        sizes = [784, 1024, 1024, CLASSES]
        layers = [(new(a, b), jnp.zeros(b)) for a, b in itertools.pairwise(sizes)]

        def mlp(params: Any, x: Any) -> Any:
            for w, b in params[:-1]:
                x = jax.nn.relu(x @ w + b)
            return x @ params[-1][0] + params[-1][1]

        return layers, mlp
    if name == "transformer":
        block = lambda: [new(WIDTH, 3 * WIDTH), new(WIDTH, WIDTH), new(WIDTH, 4 * WIDTH), new(4 * WIDTH, WIDTH)]  # noqa: E731
        params = {"embedding": new(VOCABULARY, WIDTH), "blocks": [block(), block()], "head": new(WIDTH, VOCABULARY)}

        def transformer(params: Any, tokens: Any) -> Any:
            x = params["embedding"][tokens]
            for qkv, out, up, down in params["blocks"]:
                parts = jnp.split(x @ qkv, 3, axis=-1)
                parts = [part.reshape(*part.shape[:2], HEADS, -1) for part in parts]
                x = norm(x + jax.nn.dot_product_attention(*parts).reshape(x.shape) @ out, (-1,))
                x = norm(x + jax.nn.relu(x @ up) @ down, (-1,))
            return x @ params["head"]

        return params, transformer
    plan = ((16, 16, 1), (16, 32, 2), (32, 64, 2))
    residual = [[new(3, 3, a, b), new(3, 3, b, b), new(1, 1, a, b)] for a, b, _ in plan]

    def resnet(params: Any, x: Any) -> Any:
        x = conv(x, params["start"])
        for (one, two, short), (_, _, stride) in zip(params["blocks"], plan, strict=True):
            inner = norm(conv(jax.nn.relu(norm(conv(x, one, stride), (0, 1, 2))), two), (0, 1, 2))
            x = jax.nn.relu(inner + conv(x, short, stride))
        return x.mean((1, 2)) @ params["head"]

    return {"start": new(3, 3, 3, 16), "blocks": residual, "head": new(64, CLASSES)}, resnet


def jax_step(options: argparse.Namespace) -> tuple[Step, int, int]:
    import jax
    import optax

    import ronde.jax as hvd

    hvd.init()
    params, logits = jax_model(options.model)
    optimizer = hvd.distributed(optax.sgd(0.01))
    held = [hvd.broadcast_parameters(params), optimizer.init(params)]
    x, y = data(options.model, options.batch_size, hvd.rank())

    def train(params: Any, state: Any, x: Any, y: Any) -> Any:
        def loss(params: Any) -> Any:
            return optax.softmax_cross_entropy_with_integer_labels(logits(params, x), y).mean()

        updates, state = optimizer.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    compiled = hvd.jit(train, donate_argnums=(0, 1))

    def step() -> None:
        held[:] = jax.block_until_ready(compiled(*held, x, y))

    return step, hvd.rank(), hvd.size()


STEPS = {"torch": torch_step, "tensorflow": tensorflow_step, "keras": keras_step, "jax": jax_step}


# ---- one run


def work(options: argparse.Namespace) -> None:
    """In a rank: measure, and print on rank 0."""
    step, rank, size = STEPS[options.framework](options)
    unit = "token" if options.model == "transformer" else "img"
    each = options.batch_size * (LENGTH if unit == "token" else 1)
    say = print if rank == 0 else lambda *_, **__: None
    say(
        f"Model: {options.model}\nBatch size: {options.batch_size}\nNumber of CPUs: {size}\nRunning warmup...",
        flush=True,
    )
    for _ in range(options.warmup):
        step()
    say("Running benchmark...", flush=True)
    rates = []
    for number in range(options.iterations):
        began = time.perf_counter()
        for _ in range(options.batches):
            step()
        rates.append(each * options.batches / (time.perf_counter() - began))
        say(f"Iter #{number}: {rates[-1]:.1f} {unit}/sec per CPU", flush=True)
    mean, deviation = statistics.mean(rates), 1.96 * statistics.pstdev(rates)
    say(f"{unit.capitalize()}/sec per CPU: {mean:.1f} +-{deviation:.1f}")
    say(f"Total {unit}/sec on {size} CPU(s): {size * mean:.1f} +-{size * deviation:.1f}", flush=True)
    if rank == 0 and options.result:
        Path(options.result).write_text(json.dumps({"total": size * statistics.median(rates), "unit": unit}))
    if options.framework == "torch" and (options.ddp or options.backend == "gloo"):
        import torch.distributed as dist

        del step  # DDP keeps the group; gloo may wait forever if one rank closes it after the others have ended
        dist.barrier()
        dist.destroy_process_group()


def launched(options: argparse.Namespace, size: int, backend: str, folder: Path) -> dict[str, Any]:
    """Start the ranks of one run, show what they print, and return the result."""
    result = folder / "result.json"
    words = [options.framework, "--model", options.model, "--backend", backend, "--result", str(result), "--worker"]
    for name in ("batch_size", "warmup", "iterations", "batches"):
        words += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    words += ["--ddp"] if options.ddp else []
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    quiet = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": str(ROOT), "MASTER_PORT": port}
    command = [sys.executable, "-m", "ronde", "run", "-np", str(size), sys.executable, __file__, *words]
    print(f"== {options.framework} on {backend}, {size} rank{'s' * (size > 1)}", flush=True)
    subprocess.run(command, env=os.environ | quiet, cwd=ROOT, check=True)
    found: dict[str, Any] = json.loads(result.read_text())
    return found


def plot(path: str, title: str, unit: str, totals: dict[str, dict[int, float]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4))
    for backend, found in totals.items():
        axes.plot(list(found), list(found.values()), marker="o", label=backend)
    sizes = sorted({size for found in totals.values() for size in found})
    first = next(iter(totals.values()))
    least = min(first)
    axes.plot(sizes, [first[least] * size / least for size in sizes], "--", color="grey", label="ideal")
    axes.set(xlabel="ranks", ylabel=f"{unit}/sec", title=title, xticks=sizes)
    axes.legend()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("framework", choices=STEPS)
    parser.add_argument("--model", choices=("resnet", "mlp", "transformer"), default="resnet")
    parser.add_argument("-np", type=int, nargs="+", metavar="N", help="numbers of ranks; without it, this is a rank")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--warmup", type=int, default=10, help="batches before the measurement")
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--batches", type=int, default=10, help="batches in an iteration")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each kind, in turns")
    parser.add_argument("--ddp", action="store_true", help="torch: DistributedDataParallel")
    parser.add_argument("--beside", choices=("gloo",), help="torch: DDP on gloo too")
    parser.add_argument("--library", help="for example horovod.torch, under its launcher")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--plot", metavar="FILE")
    parser.add_argument("--backend", choices=("ronde", "gloo"), default="ronde", help=argparse.SUPPRESS)
    parser.add_argument("--result", help=argparse.SUPPRESS)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker or not options.np:
        work(options)
        return
    if options.plot and importlib.util.find_spec("matplotlib") is None:
        parser.error("--plot: needs matplotlib: pip install 'ronde[plot]'")
    if options.beside and options.framework != "torch":
        parser.error(f"--beside {options.beside}: is for torch")

    backends = ["ronde", *([options.beside] if options.beside else [])]
    runs: dict[str, dict[int, list[float]]] = {backend: {size: [] for size in options.np} for backend in backends}
    unit = ""
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            for size in options.np:
                for backend in backends if number % 2 == 0 else backends[::-1]:
                    found = launched(options, size, backend, Path(folder))
                    unit = found["unit"]
                    runs[backend][size].append(found["total"])
    totals = {
        backend: {size: statistics.median(each) for size, each in found.items()} for backend, found in runs.items()
    }
    print(f"\n{options.framework}, {options.model}, batch {options.batch_size}, {options.rounds} rounds, medians")
    least = min(options.np)
    for backend, rates in totals.items():
        for size, total in rates.items():
            scaling = total / rates[least] * least / size
            print(f"{backend:6} {size:3} ranks {total:12.1f} {unit}/sec  scaling {scaling:5.1%}")
    if options.beside:
        for size in options.np:
            pairs = [one / other for one, other in zip(runs["ronde"][size], runs[options.beside][size], strict=True)]
            middle, least, most = statistics.median(pairs), min(pairs), max(pairs)
            print(f"{size} ranks: ronde / {options.beside} {middle:.2f} ({least:.2f} to {most:.2f})")
    if options.json:
        Path(options.json).write_text(json.dumps({"options": vars(options), "runs": runs, "unit": unit}, indent=1))
    if options.plot:
        plot(options.plot, f"{options.framework}, {options.model}", unit, totals)


if __name__ == "__main__":
    main()
