"""A user's script with ten deliberate mistakes, each on a line that ends in `# mistake`. It is never run."""

from __future__ import annotations

import numpy as np

import ronde

comm = ronde.init()
x = np.ones(4, np.float32)

comm.allreduce(x, "median")  # mistake
ronde.broadcast(x, root="0")  # mistake
ronde.allreduce(x, prescael=0.5)  # mistake
comm.allreduce(x, name="layer1.weight")  # mistake
ronde.allgather([1.0, 2.0])  # mistake
ronde.allreduce(x, out=[0.0, 0.0, 0.0, 0.0])  # mistake
comm.reduce(x).sum()  # mistake
comm.allreduce(x).wait()  # mistake
comm.recv(x, 0, tag=1.5)  # mistake
ronde.send(x)  # mistake
