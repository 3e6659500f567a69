"""Frameworks on Ronde: one room for each, and `horovod` with the part of Horovod's API that they share. The room
`command_line` has the `ronde` command.

    keras  ->  torch, tensorflow, jax      (through keras/backends; of these only the one that Keras runs on)
    torch, tensorflow, jax, keras, mxnet, numpy  ->  horovod  ->  collectives

Each room's `__init__` is its only door. Importing one framework's room must not import another framework; torch_plugin
and torch_backend stand beside the rooms because torch loads them while it is itself being imported.
"""
