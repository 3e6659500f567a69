"""`ronde top`: the command, its screen, its keys, and the sources of its figures.

`frontends.top` makes the figures, and has the page. A source is a job with ranks on this host, or the same command on
another host.
"""
