"""Imports frontends.keras into a process that cannot import the frameworks on which Keras does not run."""

import sys

from tests.frontends.keras_ranks import Absent

sys.meta_path.insert(0, Absent())

import frontends.keras  # noqa: E402, F401
