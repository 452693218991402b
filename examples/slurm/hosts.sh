#!/bin/bash
# Train on a list of hosts without a scheduler: hosts.sh HOSTFILE RANKS CONFIG OUT
#
# HOSTFILE has a line for each host, "node1:8" (MPICH, Intel MPI) or "node1 slots=8" (Open MPI).
# All hosts see the same OUT, and have neocpu under the same path.
set -eu
hosts=$1
ranks=$2
config=$3
out=$4
launcher=${MPIEXEC:-mpiexec}
# Open MPI calls it --hostfile, binds ranks to single cores, and wants to be told what to pass on
if "$launcher" --version 2>&1 | grep -qi "open mpi\|prte"; then
    options=(--hostfile "$hosts" --bind-to none -x PATH)
else
    options=(-f "$hosts")
fi
exec "$launcher" "${options[@]}" -n "$ranks" neocpu train "$config" --out "$out" --resume
