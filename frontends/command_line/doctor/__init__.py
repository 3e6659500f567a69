"""`ronde doctor`: checks of this machine (`machine`), and of the hosts of a cluster with the links between them
(`cluster`).

A `probe` runs on each host, as a program of its own or in a rank, and answers questions. `probes` are the ways to one,
`check` asks them all, and `report` tells what was found. The commands import nothing of this room but `machine`.
"""
