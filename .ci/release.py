"""Builds sdist and wheel into dist/, checks them, and installs each in a clean environment: python .ci/release.py

Both are installed on every Python from 3.11 on that is found here; a program of two ranks must run there, from Python
and by the command. Nothing is uploaded.
"""

from __future__ import annotations

import email
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
DIST: Final = ROOT / "dist"
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
SECONDS: Final = 300
"""Limit for each step."""

PROGRAM: Final = """\
import numpy as np
import ronde

def work(scale):
    return float(ronde.allreduce(np.full(3, scale * ronde.rank()))[0])

if __name__ == "__main__":
    assert ronde.run(work, np=2, args=(10,)) == [10.0, 10.0]
    print(ronde.__version__)
"""
SCRIPT: Final = "import numpy, ronde; ronde.init(); print(ronde.allreduce(numpy.ones(1)))"


def run(*command: str | Path, directory: Path = ROOT) -> str:
    """Run a command and return its output. SystemExit with its output if it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=directory, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(words)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def interpreter(version: str) -> str | None:
    """The path of this Python; None if there is none that works."""
    for name in (f"python{version}", sys.executable):
        path = shutil.which(name)
        if path is None:
            continue
        probe = "import sys, venv, ensurepip; print('%d.%d %s' % (*sys.version_info[:2], sys._base_executable))"
        done = subprocess.run([path, "-c", probe], capture_output=True, text=True, timeout=SECONDS, check=False)
        if done.returncode == 0 and done.stdout.split()[0] == version:
            return done.stdout.split()[1]
    return None


def try_out(python: str, package: Path) -> str:
    """Install the package in an environment of its own, run two ranks, and return the version that it reports."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        run(python, "-m", "venv", place / "env")
        binaries = place / "env" / ("Scripts" if sys.platform == "win32" else "bin")
        run(binaries / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", package)
        (place / "program.py").write_text(PROGRAM)
        version = run(binaries / "python", "program.py", directory=place).strip()
        lines = run(binaries / "ronde", "run", "-np", "2", binaries / "python", "-c", SCRIPT, directory=place)
        if sorted(lines.split("\n")) != ["", "[rank 0] [2.]", "[rank 1] [2.]"]:
            raise SystemExit(f"{package.name} on {python}: ronde run printed {lines!r}")
        if run(binaries / "ronde", "--version").split() != ["ronde", version]:
            raise SystemExit(f"{package.name} on {python}: ronde --version does not print {version}")
        return version


def placeholders(wheel: Path) -> list[str]:
    """The addresses in the wheel's metadata that lead nowhere."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = email.message_from_bytes(archive.read(name))
    return [line for line in metadata.get_all("Project-URL", []) if ".example" in line]


def main() -> int:
    """Run all steps; returns 0, or raises SystemExit with the output of the step that failed."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", DIST)
    built = sorted(DIST.iterdir())
    say("built " + ", ".join(f"{path.name} ({path.stat().st_size >> 10} KiB)" for path in built))
    say(run(sys.executable, "-m", "twine", "check", "--strict", *built).strip())
    for number in PYTHONS:
        python = interpreter(number)
        if python is None:
            say(f"Python {number}: not found here, not tried")
            continue
        for package in built:
            say(f"Python {number}: {package.name} installs and runs as version {try_out(python, package)}")
    for line in placeholders(next(path for path in built if path.suffix == ".whl")):
        say(f"before you publish: [project.urls] in pyproject.toml has a placeholder: {line}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
