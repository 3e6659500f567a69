#!/bin/sh
# Two hosts with four ranks each, from a shell on one of them or on a third one.
#
#   deploy/train-ssh.sh
#
# Each host needs the same Python with Ronde, and the same folder. `ssh host` must work without a password and with a known
# host key. Environment, secret and arguments go to the hosts over ssh's standard input, never over a command line.
set -eu

ronde run -np 8 -H "${HOSTS:-host-a:4,host-b:4}" --start-timeout 60 python examples/train_digits.py
