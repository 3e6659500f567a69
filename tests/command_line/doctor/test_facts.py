"""The versions that `ronde doctor` shows of frameworks and of the software for GPUs."""

from __future__ import annotations

import sys

from frontends.command_line.doctor import facts

DRIVER = """\
NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder@U22)
GCC version:  gcc version 12.3.0
"""


def test_versions_are_found_without_importing_anything() -> None:
    before = set(sys.modules)
    assert set(facts.frameworks()) == {"torch", "tensorflow", "keras", "jax", "mxnet"}
    assert not {"torch", "tensorflow", "keras", "jax", "mxnet"} & (set(sys.modules) - before)


def test_the_first_distribution_counts() -> None:
    assert facts.first_version(("no-such-distribution", "numpy")) == facts.first_version(("numpy",)) is not None
    assert facts.first_version(("no-such-distribution",)) is None


def test_numbers_of_nccl_and_the_text_of_the_driver() -> None:
    assert [facts.nccl_version(number) for number in (2804, 20907, 22703)] == ["2.8.4", "2.9.7", "2.27.3"]
    assert facts.driver_version(DRIVER) == "580.95.05"
    assert facts.driver_version("") is None
