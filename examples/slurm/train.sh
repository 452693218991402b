#!/bin/bash
# Train on a cluster for longer than a job may last: sbatch train.sh CONFIG OUT [more of neocpu train]
#
# Two minutes before the time limit Slurm sends SIGUSR1 to this shell, which passes it on; the run
# writes a checkpoint and ends, and the job goes back into the queue, to go on from there.
#SBATCH --job-name=neocpu
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=04:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
set -u
config=${1:?usage: sbatch train.sh CONFIG OUT [more options of neocpu train]}
out=${2:?usage: sbatch train.sh CONFIG OUT [more options of neocpu train]}
shift 2

# the site's MPI and the virtual environment with neocpu, for example:
#   NEOCPU_MODULES="mpich python" NEOCPU_VENV=$HOME/venv sbatch train.sh ...
[ -z "${NEOCPU_MODULES:-}" ] || module load $NEOCPU_MODULES
[ -z "${NEOCPU_VENV:-}" ] || . "$NEOCPU_VENV/bin/activate"

# rows of tables over SSD live on the disk of each node; OUT is on a disk that all nodes share
scratch=${SLURM_TMPDIR:-${TMPDIR:-/tmp}}/neocpu-rows-$SLURM_JOB_ID

warned=
srun neocpu train "$config" --out "$out" --resume --set "memory.folder=$scratch" "$@" &
run=$!
trap 'warned=yes; kill -USR1 "$run" 2>/dev/null' USR1
trap 'kill -TERM "$run" 2>/dev/null' TERM
while true; do
    wait "$run" # a signal ends it early
    status=$?
    kill -0 "$run" 2>/dev/null || break
done

if [ -n "$warned" ] && [ "$status" -gt 128 ]; then # stopped in time, with a checkpoint
    if [ "${SLURM_RESTART_COUNT:-0}" -lt "${NEOCPU_RESTARTS:-100}" ]; then
        job=$SLURM_JOB_ID
        [ -z "${SLURM_ARRAY_JOB_ID:-}" ] || job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
        scontrol requeue "$job"
        exit
    fi
    echo "train.sh: restarted ${SLURM_RESTART_COUNT} times; submit it again to go on" >&2
fi
exit "$status"
