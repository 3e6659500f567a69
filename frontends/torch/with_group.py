"""Run a script with torch's process group made before it begins.

    torchrun --nproc-per-node 2 -m ronde.torch.with_group train.py --epochs 3
    torchrun --nproc-per-node 2 -m ronde.torch.with_group -m package.module --epochs 3

For scripts of libraries that accept only backends that they know, but use a process group that there is already, such
as accelerate and transformers. A script that calls init_process_group itself fails: give it the backend's name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch.distributed as dist

import frontends.torch.distributed  # noqa: F401 - where Ronde is not installed, this registers the backend
from frontends.programs import prepared
from frontends.torch_backend import BACKEND

_USAGE: Final = "usage: python -m ronde.torch.with_group (script.py | -m module | -c command) [argument ...]\n"


def main(words: Sequence[str]) -> None:
    """Make the default process group, and run a script, a module or a command with its arguments as the main program.

    The group is destroyed at the end, or aborted if the script fails.
    """
    run = prepared(words, _USAGE)
    dist.init_process_group(BACKEND)
    try:
        run(run_name="__main__")
    except BaseException as error:
        if not (isinstance(error, SystemExit) and not error.code) and dist.is_initialized():
            dist.group.WORLD.abort()
        raise
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
