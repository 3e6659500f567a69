"""Starting ranks: the `ronde` command, and `run(fn)` for starting them from Python."""
