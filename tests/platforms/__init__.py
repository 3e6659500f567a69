"""Ronde where something is missing: packages, names of another system, files and calls of the kernel."""
