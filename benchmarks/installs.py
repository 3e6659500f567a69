"""The core dependencies as wheels, without a compiler, by platform and Python: the table of docs/platforms.md.

    python -m benchmarks.installs            # ask the index of pip; some minutes
    python -m benchmarks.installs --write    # put the table between the markers in docs/platforms.md

pip resolves the dependencies of pyproject.toml for another system, with binaries only. A cell is the version of NumPy,
or the package that has no wheel.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "platforms.md"
BEGIN: Final = "<!-- installs: made by python -m benchmarks.installs --write -->"
END: Final = "<!-- end of installs -->"
BETWEEN: Final = "; "
"""It separates platforms that share a row."""

PLATFORMS: Final = {
    "Linux, x86-64": ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux2014_x86_64"),
    "Linux, aarch64": ("manylinux_2_28_aarch64", "manylinux_2_27_aarch64", "manylinux2014_aarch64"),
    "Linux with musl, x86-64": ("musllinux_1_2_x86_64",),
    "Linux with musl, aarch64": ("musllinux_1_2_aarch64",),
    "macOS, arm64": ("macosx_14_0_arm64",),
    "macOS, x86-64": ("macosx_14_0_x86_64",),
    "Windows, x86-64": ("win_amd64",),
    "Windows, arm64": ("win_arm64",),
}
"""The tags of wheels by platform."""
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14", "3.14t", "3.15")


def dependencies() -> list[str]:
    """The core dependencies of Ronde."""
    found: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    return found


def resolve(platform: str, python: str, packages: Sequence[str]) -> dict[str, str]:
    """The versions of packages, and of what they need, that are wheels for this platform and Python. Raises LookupError
    with the name of a package that has no such wheel, ConnectionError if the index cannot be asked."""
    version = python.removesuffix("t")
    abi = f"cp{version.replace('.', '')}{'t' * python.endswith('t')}"
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-cache-dir"]
        command += ["--disable-pip-version-check", "--only-binary=:all:", "--target", folder, "--report", str(report)]
        command += ["--ignore-requires-python"]  # pip would ask for that of its own Python; a wheel's tag has the other
        command += ["--implementation", "cp", "--python-version", version, "--abi", abi, "--abi", "none"]
        command += [word for tag in PLATFORMS[platform] for word in ("--platform", tag)]
        done = subprocess.run([*command, *packages], capture_output=True, text=True, timeout=300, check=False)
        if done.returncode == 0:
            found = json.loads(report.read_text("utf-8"))["install"]
            return {item["metadata"]["name"].lower(): item["metadata"]["version"] for item in found}
    absent = re.search(r"No matching distribution found for ([\w-]+)", done.stderr)
    if absent is None or ("from versions: none" in done.stderr and "Retrying" in done.stderr):
        raise ConnectionError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "pip says nothing")
    raise LookupError(absent[1])


def cell(platform: str, python: str) -> str:
    """The version of NumPy, or the package without a wheel."""
    try:
        return f"NumPy {resolve(platform, python, dependencies())['numpy']}"
    except LookupError as error:
        return f"no wheel of {error}"


def table(found: Sequence[Sequence[str]]) -> str:
    """The part of the page between the markers; platforms with the same cells share a row."""
    head = ["platform", *(f"Python {python}" for python in PYTHONS)]
    rows: dict[tuple[str, ...], list[str]] = {}
    for platform, *cells in found:
        rows.setdefault(tuple(cells), []).append(platform)
    shared = ([BETWEEN.join(platforms), *cells] for cells, platforms in rows.items())
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *shared))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.installs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="write the table into docs/platforms.md")
    options = parser.parse_args(arguments)
    found = [[platform, *(cell(platform, python) for python in PYTHONS)] for platform in PLATFORMS]
    print(table(found))
    if options.write:
        before, rest = PAGE.read_text("utf-8").split(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n\n{table(found)}\n\n{END}{rest.split(END)[1]}", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
