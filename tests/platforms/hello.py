"""The first program of a user: every rank says hello, and all of them compute a sum.

python -m ronde run -np 2 python -m tests.platforms.hello
"""

import numpy as np

import ronde

ronde.init()
found = ronde.allreduce(np.full(3, ronde.rank() + 1.0))
size = ronde.size()
assert (found == size * (size + 1) / 2).all(), found
print(f"hello from rank {ronde.rank()} of {size}", flush=True)
ronde.shutdown()
