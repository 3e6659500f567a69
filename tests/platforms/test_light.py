"""Ronde with its core dependencies alone: without ml_dtypes everything works but its dtypes, whose errors tell what to
install."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from collectives.arrays import is_small_float, named_dtype
from collectives.arrays.named_dtypes import ML_DTYPES
from tests.platforms.starting import PROGRAM, python

HIDE = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "ml_dtypes":
            raise ModuleNotFoundError(f"No module named {name!r}", name="ml_dtypes")

sys.meta_path.insert(0, Absent())
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder by which Python finds no ml_dtypes."""
    (tmp_path / "sitecustomize.py").write_text(HIDE)
    return tmp_path


def test_every_dtype_of_ml_dtypes_is_known_by_name() -> None:
    import ml_dtypes

    kinds = [kind for kind in vars(ml_dtypes).values() if isinstance(kind, type) and issubclass(kind, np.generic)]
    names = {np.dtype(kind).name for kind in kinds}
    assert names <= set(ML_DTYPES)
    assert {named_dtype(name).name for name in names} == names
    assert named_dtype("float32") == np.float32
    with pytest.raises(TypeError):
        named_dtype("float33")


def test_small_floats_are_those_of_16_and_8_bits() -> None:
    import ml_dtypes

    small = [np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]
    others = [np.float32, np.int16, np.uint8, np.bool_, np.complex64]
    assert [is_small_float(np.dtype(kind)) for kind in (*small, *others)] == [True] * 4 + [False] * 5


@pytest.mark.processes
def test_ml_dtypes_is_imported_where_it_is_used() -> None:
    text = "import ronde, sys; ronde.init(); print('ml_dtypes' in sys.modules); ronde.empty(3, 'bfloat16')"
    assert python("-c", f"{text}; print('ml_dtypes' in sys.modules)").stdout == "False\nTrue\n"


@pytest.mark.processes
@pytest.mark.parametrize("way", ["solo", "threads local", "processes auto"])
def test_p4_everything_else_works_without_it(site: Path, way: str) -> None:
    ended = python(PROGRAM, *way.split(), site=site)
    assert set(ended.stdout.split()) == {"right"}, ended.stderr


@pytest.mark.processes
def test_p4_commands_work_without_it(site: Path) -> None:
    ended = python("-m", "ronde", "run", "-np", "2", PROGRAM, site=site)
    assert (ended.returncode, ended.stdout.count("right")) == (0, 2), ended.stderr
    assert python("-m", "ronde", "doctor", site=site).returncode == 0


@pytest.mark.processes
@pytest.mark.parametrize(
    "call",
    [
        "ronde.empty(3, 'bfloat16')",
        "ronde.empty(3, 'float8_e5m2')",
        "ronde.compression.BF16()",
        "from frontends.command_line.bench import _dtype; _dtype('bfloat16')",
    ],
)
def test_p4_a_dtype_that_needs_it_names_the_command(site: Path, call: str) -> None:
    program = f"import ronde\nronde.init()\ntry:\n    {call}\nexcept Exception as error:\n    print(type(error), error)"
    ended = python("-c", program, site=site)
    assert "pip install 'ronde[bfloat16]'" in ended.stdout, ended.stdout + ended.stderr


@pytest.mark.processes
def test_p4_a_message_of_such_a_dtype_names_the_command(site: Path) -> None:
    """The receiver has no ml_dtypes, the sender has."""
    text = (
        "import sys, ronde\n"
        "ronde.init()\n"
        "if ronde.rank() == 0:\n"
        "    sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != 'Absent']\n"
        "    import ml_dtypes, numpy\n"
        "    ronde.send(numpy.zeros(3, ml_dtypes.bfloat16), 1)\n"
        "    ronde.barrier()\n"
        "else:\n"
        "    try:\n"
        "        ronde.recv(src=0)\n"
        "    except ModuleNotFoundError as error:\n"
        "        print(error)\n"
        "    ronde.barrier()\n"
    )
    ended = python("-m", "ronde", "run", "-np", "2", sys.executable, "-c", text, site=site)
    assert "pip install 'ronde[bfloat16]'" in ended.stdout, ended.stdout + ended.stderr
    assert ended.returncode == 0


@pytest.mark.frameworks
def test_p4_torch_works_without_it(site: Path) -> None:
    pytest.importorskip("torch", reason="needs PyTorch")
    text = (
        "import torch, ronde.torch as hvd\n"
        "hvd.init()\n"
        "assert hvd.allreduce(torch.ones(3), op=hvd.Sum).tolist() == [2, 2, 2]\n"
        "assert hvd.broadcast_object([hvd.rank()], 1) == [1]\n"
        "try:\n"
        "    hvd.allreduce(torch.ones(3, dtype=torch.bfloat16))\n"
        "except ModuleNotFoundError as error:\n"
        "    print(error)\n"
    )
    ended = python("-m", "ronde", "run", "-np", "2", sys.executable, "-c", text, site=site)
    assert ended.stdout.count("pip install 'ronde[bfloat16]'") == 2, ended.stdout + ended.stderr
    assert ended.returncode == 0
    assert "Traceback" not in ended.stderr


@pytest.mark.processes
def test_p4_ronde_mpi_has_no_datatype_for_it(site: Path) -> None:
    text = "from ronde.mpi import MPI; print(MPI.BFLOAT16_T == MPI.DATATYPE_NULL, MPI.FLOAT == MPI.DATATYPE_NULL)"
    assert python("-c", text, site=site).stdout == "True False\n"
    assert python("-c", text).stdout == "False False\n"
