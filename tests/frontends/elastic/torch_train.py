"""Horovod's elastic loop for torch, with its import changed. It trains until a rank has come and left."""

from __future__ import annotations

from typing import Any

import torch

import ronde.torch as hvd

hvd.init()
torch.manual_seed(hvd.rank())
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
rate = 0.001
optimizer = torch.optim.SGD(model.parameters(), lr=rate * hvd.size(), momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
inputs = torch.randn(240, 8, generator=torch.Generator().manual_seed(1))
dataset = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
sampler = hvd.elastic.ElasticSampler(dataset)
loader = torch.utils.data.DataLoader(dataset, batch_size=8, sampler=sampler)


@hvd.elastic.run
def train(state: Any) -> None:
    state.sizes = [*state.sizes, hvd.size()]
    print("train", f"size={hvd.size()}", flush=True)
    for state.epoch in range(state.epoch, 10000):  # noqa: B020 - as in Horovod's documents
        for batch, (data, target) in enumerate(loader):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(data), target).backward()
            optimizer.step()
            state.sampler.record_batch(batch, 8)
            state.commit()
        sampler.set_epoch(state.epoch + 1)
        if state.sizes[-1] == 2 and 3 in state.sizes:
            return


def set_rate() -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate * hvd.size()


state = hvd.elastic.TorchState(model, optimizer, epoch=0, sampler=sampler, sizes=[])
state.register_reset_callbacks([set_rate])
train(state)
digest = sum(float(parameter.detach().double().sum()) for parameter in model.parameters())
print("done", digest.hex(), *state.sizes, optimizer.param_groups[0]["lr"] / rate, flush=True)
