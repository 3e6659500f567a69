"""Breaks ranks on purpose, thousands of times, and judges what the others do: the failure contract, tried.

python -m tests.chaos --help      `make chaos` runs it all; docs/evidence.md has the results of the last runs

    calls.py        random collectives whose results are known exactly
    faults.py       what can go wrong, where it can, and what the contract says of it
    case.py         one try: a bed, a transport, a fault, a number of ranks and a seed
    survivor.py     what a rank does: computes until it fails, tells, shrinks, computes on
    verdict.py      what ranks told -> what was broken of the contract
    thread_bed.py   runs a case on threads, with the `faulty` transport
    process_bed.py  runs a case on processes; rank.py is their side of it
    crew.py         processes that run cases on threads, so that one that hangs cannot spoil the rest
    campaign.py     many cases, in order, with progress; table.py makes the table of what came of them
    soak.py         minutes of mixed collectives under small faults; nothing may grow. samples.py judges that
"""
