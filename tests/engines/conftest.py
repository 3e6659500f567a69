"""Engines on this machine, shared by the tests of a module."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = str(Path(__file__).resolve().parents[2])

# Before Ray is imported: it writes no token into the home folder, and shows lines that differ in a number alone.
os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_DEDUP_LOGS": "0"}


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, also where the tests run in the background of a shell, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[Any]:
    """A Ray cluster of two raylets with 2 CPUs each; this process is its driver."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'ronde[ray]'")
    import ray
    from ray.cluster_utils import Cluster

    nodes = {"num_cpus": 2, "object_store_memory": 80 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={**nodes, "include_dashboard": False})
    cluster.add_node(**nodes)
    ray.init(address=cluster.address, log_to_driver=True)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """A context of Spark on two workers with two slots each."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local-cluster[2,2,1024]").config("spark.ui.enabled", False)
    builder = builder.config("spark.executorEnv.PYTHONPATH", ROOT).config("spark.log.level", "OFF")
    before = dict(os.environ)
    os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
    try:
        session = builder.getOrCreate()
        yield session.sparkContext
        session.stop()
    finally:
        os.environ.clear()
        os.environ.update(before)
