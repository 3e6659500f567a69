"""Bytes between ranks: in order, matched by peer and tag, within a deadline. No dtype, no operation, no collective.

`base` has the contract of every transport, `onesided`, `native` and `anysource` its optional abilities, `errors` the
error tree, `registry` the transports by name, `store` the contract of a store, `rendezvous` the stores and the meeting
of the ranks in one, `testing` the conformance kit. Code outside uses these only. `local`, `shm`, `tcp`, `nccl`, `auto`
and `faulty` are backends: they are found through the registry and never import each other. `lifecycle`, `driver` and
`matching` are parts that the backends share.
"""
