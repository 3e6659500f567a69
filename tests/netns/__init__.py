"""Several hosts on one machine, what networks do to them, and what the ranks there make of it.

python -m tests.netns --help      tries every case many times; the tests of this folder try most of them once

    network.py      hosts as Linux namespaces, joined by a switch; faults of the network
    crew.py         ranks as processes on them, kept between jobs; worker.py is their side of it
    jobs.py         what ranks do, and what they tell of how it went
    site.py         network, crew and store together; what an error must say
    cases.py        what can happen to a host
    cluster.py      hosts with sshd; slurm.py: with Slurm
    launchers.py    the launchers that start ranks on two hosts
    table.py        what can happen to each of them, and what is left: python -m tests.netns.table
"""
