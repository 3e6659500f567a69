"""MXNet's Gluon on several processes: scikit-learn's handwritten digits.

    ronde run -np 2 python examples/mxnet_digits.py
    ronde run -np 2 python examples/mxnet_digits.py --kvstore                # gluon.Trainer with Ronde as its KVStore

Only the import differs from the same script for Horovod. `ronde.mxnet` is imported first: it makes MXNet 1.9.1
importable under NumPy 2. docs/mxnet.md tells how MXNet is installed.
"""

from __future__ import annotations

import argparse
import hashlib

import numpy as np
from sklearn.datasets import load_digits

import ronde.mxnet as hvd

import mxnet as mx  # isort: skip

BATCH = 30


def main() -> None:
    """Train on this rank's share of the data, and report the accuracy of the common model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=6, help="number of epochs")
    parser.add_argument("--lr", type=float, default=0.002, help="learning rate of one rank; scaled by the size")
    parser.add_argument("--kvstore", action="store_true", help="use gluon.Trainer with a KVStore")
    parser.add_argument(
        "--compression", choices=("none", "fp16", "bf16"), default="none", help="type of sent gradients"
    )
    options = parser.parse_args()

    hvd.init()
    mx.random.seed(hvd.rank())
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    images, labels = (images[order] / 16).astype(np.float32), labels[order].astype(np.float32)
    mine, test = slice(hvd.rank(), 1500 // hvd.size() * hvd.size(), hvd.size()), slice(1500, None)

    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(64, activation="relu", in_units=64), mx.gluon.nn.Dense(10, in_units=64))
    net.initialize(mx.init.Xavier())
    net.hybridize()
    loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    adam = {"learning_rate": options.lr * hvd.size()}
    rows = BATCH
    hvd.broadcast_parameters(net.collect_params(), root_rank=0)
    if options.kvstore:  # a store sums gradients: `step` gets the number of rows of all ranks
        compression = None if options.compression == "none" else {"type": options.compression}
        store = mx.kv.create("ronde")
        trainer = mx.gluon.Trainer(net.collect_params(), "adam", adam, kvstore=store, compression_params=compression)
        rows = BATCH * hvd.size()
    else:
        chosen = getattr(hvd.Compression, options.compression)
        trainer = hvd.DistributedTrainer(net.collect_params(), "adam", adam, compression=chosen)
    data = mx.gluon.data.ArrayDataset(images[mine], labels[mine])
    loader = mx.gluon.data.DataLoader(data, BATCH, shuffle=True, last_batch="discard")
    for epoch in range(options.epochs):
        total = mx.nd.zeros((1,))
        for x, y in loader:
            with mx.autograd.record():
                loss = loss_of(net(x), y)
            loss.backward()
            trainer.step(rows)
            total += loss.mean()
        loss = hvd.allreduce(total / len(loader), name="loss").asscalar()
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: loss {loss:.4f}", flush=True)
    part = slice(test.start + hvd.rank(), None, hvd.size())
    hits = (net(mx.nd.array(images[part])).asnumpy().argmax(1) == labels[part]).sum()
    hits = hvd.allreduce(mx.nd.array([hits]), op=hvd.Sum, name="hits").asscalar()
    values = [parameter.data().asnumpy() for parameter in net.collect_params().values()]
    digest = hashlib.sha256(b"".join(value.tobytes() for value in values)).hexdigest()
    equal = len(set(hvd.allgather_object(digest))) == 1
    if hvd.rank() == 0:
        share = hits / len(images[test])
        print(f"accuracy {share:.1%} on {hvd.size()} ranks, parameters {'identical' if equal else 'DIFFER'}")
    hvd.shutdown()


if __name__ == "__main__":
    main()
