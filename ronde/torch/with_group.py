"""Runs a script with torch's process group made before it begins. The code is in frontends.torch.with_group."""

from __future__ import annotations

import sys

from frontends.torch.with_group import main

__all__ = ["main"]

if __name__ == "__main__":
    main(sys.argv[1:])
