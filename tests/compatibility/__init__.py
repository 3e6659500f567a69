"""Tests and scripts of others, as they are, on the torch.distributed backend `ronde` and on gloo.

    make compatibility                                  # everything, for half an hour; writes the table in the docs
    make compatibility ARGS="torch --worlds 2"          # a part of it
    python -m tests.compatibility torch --only test_all_reduce_sum test_gather

What a run finds is kept in build/compatibility/results.json, so a part that is run again replaces that part alone.
"""
