"""`import ronde`: one package with all public names, which loads no framework before it is used."""

from __future__ import annotations

import compileall
import importlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import collectives
import frontends.numpy
import ronde

ROOT = Path(__file__).resolve().parents[2]
FRAMEWORKS = ("torch", "tensorflow", "keras", "jax", "mxnet")
ENGINES = ("dask", "ray", "spark")


def modules() -> list[str]:
    """All modules of the package, as names to import."""
    files = sorted((ROOT / "ronde").rglob("*.py"))
    files = [path for path in files if path.name != "__main__.py"]
    return [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in files]


def python(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_the_names_are_those_of_collectives() -> None:
    assert ronde.__all__ is collectives.__all__
    assert all(getattr(ronde, name) is getattr(collectives, name) for name in ronde.__all__)
    assert ronde.__version__ == collectives.__version__


def test_modules_are_found_as_attributes() -> None:
    assert ronde.numpy.allreduce is frontends.numpy.allreduce
    assert ronde.compression.Int8 is importlib.import_module("collectives.compression").Int8
    assert {*FRAMEWORKS, "numpy", "compression", "allreduce", "run"} <= set(dir(ronde))
    with pytest.raises(AttributeError, match=r"'ronde' .*'caffe'"):
        ronde.caffe  # noqa: B018


@pytest.mark.processes
def test_it_is_imported_from_an_archive_and_from_bytecode_alone(tmp_path: Path) -> None:
    folder = tmp_path / "some folder"
    for package in ("ronde", "collectives", "frontends", "transports"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    archive = shutil.make_archive(str(tmp_path / "all"), "zip", folder)
    assert compileall.compile_dir(folder, quiet=1, legacy=True)
    for path in folder.rglob("*.py"):
        path.unlink()
    for place in (archive, str(folder)):
        script = f"import sys; sys.path.insert(0, {place!r}); import ronde; print(ronde.__file__, ronde.size)"
        done = python(script)
        assert done.stdout.startswith(f"{place}{os.sep}ronde"), done.stderr


@pytest.mark.processes
def test_importing_it_loads_no_parser_of_what_few_ranks_read() -> None:
    """Every rank starts with it."""
    rare = "argparse difflib email http.client importlib.metadata tomllib urllib.request xml.etree"
    done = python(f"import sys; from ronde import *; print([m for m in '{rare}'.split() if m in sys.modules])")
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.processes
def test_importing_it_loads_no_framework_and_no_numpy_frontend() -> None:
    script = f"import sys; from ronde import *; print([m for m in sys.modules if m in {(*FRAMEWORKS, 'frontends')}])"
    done = python(script)
    assert done.stdout == "[]\n", done.stdout + done.stderr


def test_no_public_name_is_that_of_a_module() -> None:
    """An import of the module would put it in the place of what has the name."""
    own = {path.stem for path in (ROOT / "collectives").iterdir()}
    assert own.isdisjoint(collectives.__all__)


@pytest.mark.processes
def test_ronde_top_imports_no_runtime() -> None:
    heavy = (
        "collectives.communicator",
        "collectives.launch",
        "collectives.watchdog",
        "transports.engine",
        "http.server",
    )
    script = f"import sys, frontends.command_line.top.command; print([m for m in sys.modules if m in {heavy}])"
    done = python(script)
    assert done.stdout == "[]\n", done.stdout + done.stderr


@pytest.mark.processes
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_missing_framework_is_named_with_the_command_that_installs_it(framework: str) -> None:
    done = python(f"import sys; sys.modules[{framework!r}] = None; import ronde.{framework}")
    needs = f"ModuleNotFoundError: ronde.{framework} needs {framework}: pip install 'ronde[{framework}]'"
    assert needs in done.stderr


STANDS_FOR = """
import importlib
for name, original in {pairs!r}:
    face, origin = importlib.import_module(name), importlib.import_module(original)
    assert face.__all__, name
    assert set(face.__all__) <= set(getattr(origin, "__all__", face.__all__)), name
    assert [item for item in face.__all__ if getattr(face, item) is not getattr(origin, item)] == [], name
"""


@pytest.mark.processes
@pytest.mark.parametrize("module", sorted({name.split(".")[1] for name in modules() if "." in name}))
def test_modules_export_names_of_the_modules_that_they_stand_for(module: str) -> None:
    """`__all__` of each is that of the original, or lists some names of the original; the objects are the same."""
    needs = {"dask": "distributed", "spark": "pyspark"}.get(module, module)
    if module in (*FRAMEWORKS, *ENGINES) and importlib.util.find_spec(needs) is None:
        pytest.skip(f"{module} is not installed: pip install 'ronde[{module}]'")
    names = [name for name in modules() if name.split(".")[1:2] == [module]]
    done = python(STANDS_FOR.format(pairs=[(name, original(name)) for name in names]))
    assert done.returncode == 0, done.stderr


def original(name: str) -> str:
    """The module that a module of the package stands for."""
    name = name.replace("ronde.", "frontends.", 1).replace(".tensorflow.keras", ".keras")
    of_collectives = (
        "frontends.compression",
        "frontends.elastic",
        "frontends.local_sgd",
        "frontends.parameter_server",
    )
    return name.replace("frontends.", "collectives.", 1) if name in of_collectives else name


@pytest.mark.processes
def test_the_package_is_a_command() -> None:
    command = [sys.executable, "-m", "ronde"]
    done = subprocess.run([*command, "--version"], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout == f"ronde {ronde.__version__}\n", done.stderr
    done = subprocess.run([*command, "run", "--frobnicate"], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, "usage: ronde" in done.stderr) == (2, True)


@pytest.mark.processes
def test_tensorflow_alone_does_not_load_keras_layers() -> None:
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("tensorflow is not installed: pip install 'ronde[tensorflow]'")
    script = "import sys, ronde.tensorflow as hvd; print('frontends.tensorflow.sync_batch_norm' in sys.modules)"
    done = python(script)
    assert done.stdout == "False\n", done.stdout + done.stderr


@pytest.mark.processes
def test_tensorflow_elastic_has_the_state_of_keras() -> None:
    for needed in ("tensorflow", "keras"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed: pip install 'ronde[{needed}]'")
    script = "import ronde.tensorflow.elastic as e; print(e.TensorFlowKerasState.__name__)"
    done = python(script)
    assert done.stdout == "KerasState\n", done.stdout + done.stderr


@pytest.mark.processes
@pytest.mark.parametrize("name", ["collectives", "frontends", "transports"])
@pytest.mark.parametrize("what", ["script", "command"])
def test_l3_a_folder_of_one_of_its_names_is_an_error_that_names_both(tmp_path: Path, name: str, what: str) -> None:
    package = tmp_path / name / "__init__.py"
    package.parent.mkdir()
    package.touch()
    script = tmp_path / "train.py"
    script.write_text("import ronde.numpy")
    command = [str(script)] if what == "script" else ["-m", "ronde", "--version"]
    done = subprocess.run(
        [sys.executable, *command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    *_, last = done.stderr.splitlines()
    assert done.returncode == 1
    assert last.startswith("ImportError: ")
    assert str(package) in last
    assert str(ROOT) in last


@pytest.mark.processes
def test_l11_an_interrupt_while_the_command_imports(tmp_path: Path) -> None:
    slow = tmp_path / "numpy" / "__init__.py"
    slow.parent.mkdir()
    slow.write_text("import time; print('importing', flush=True); time.sleep(100)")
    command = [sys.executable, "-m", "ronde", "run", "-np", "1", "true"]
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background ignore it
    try:
        process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
