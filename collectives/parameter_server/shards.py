"""Names of parameters are divided into shards by a hash, and shards among the servers."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence


def shard_of(name: str, shards: int) -> int:
    """The shard of a parameter, 0 to shards - 1: the same on all ranks and in all runs."""
    return zlib.crc32(name.encode()) % shards


def assigned(shards: int, held: Mapping[int, Sequence[int]]) -> list[int]:
    """The server of each shard.

    held   for each server the shards that it has in memory; it keeps them. The others go to the servers with fewest

    Raises ValueError if there is no server.
    """
    if not held:
        raise ValueError("no server is left")
    found = {shard: server for server, its in held.items() for shard in its}
    load = {server: len(its) for server, its in held.items()}
    for shard in range(shards):
        if shard not in found:
            found[shard] = min(load, key=lambda server: (load[server], server))
            load[found[shard]] += 1
    return [found[shard] for shard in range(shards)]
