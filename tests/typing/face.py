"""A user's script with frameworks: type checkers and editors know the names in Ronde's modules. It is never run."""

from __future__ import annotations

from typing import assert_type

import ronde
import ronde.jax
import ronde.numpy as hvd
from ronde.compression import Int8, State
from ronde.torch.elastic import ElasticSampler


def names(sampler: ElasticSampler) -> None:
    assert_type(ronde.compression.Int8(), Int8)
    assert_type(hvd.size(), int)
    assert_type(ronde.torch.rank(), int)
    assert_type(ronde.tensorflow.local_rank(), int)
    assert_type(ronde.keras.size(), int)
    assert_type(ronde.jax.size(), int)
    assert_type(ronde.mxnet.rank(), int)
    assert_type(ronde.torch.nccl_built(), int)
    assert_type(ronde.tensorflow.is_homogeneous(), bool)
    assert_type(ronde.keras.mpi_built(), bool)
    assert_type(State(), ronde.compression.State)
    sampler.set_epoch(1)
