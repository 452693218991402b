#!/bin/bash
# Train on a cluster for longer than a job may last: sbatch train.sh CONFIG OUT [more of neocpu train]
#
# Two minutes before the time limit Slurm sends SIGUSR1 to this shell, which passes it on; the run
# writes a checkpoint and ends, and the job goes back into the queue, to go on from there.
#
# A node needs ntasks-per-node x cpus-per-task cores (16 here), or the job waits for ever. This says
# so beforehand, `sinfo -o "%P %c"` lists the cores of nodes, and --cpus-per-task=2 asks for less:
#   sbatch --test-only train.sh CONFIG OUT
#SBATCH --job-name=neocpu
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=4
#SBATCH --time=04:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
set -u
# first, as a signal may come while modules are loaded
run=
warned=
trap 'warned=1; [ -z "$run" ] || kill -USR1 "$run" 2>/dev/null' USR1
trap 'warned=; [ -z "$run" ] || kill -TERM "$run" 2>/dev/null' TERM # ended for good
config=${1:?usage: sbatch train.sh CONFIG OUT [more options of neocpu train]}
out=${2:?usage: sbatch train.sh CONFIG OUT [more options of neocpu train]}
shift 2

# the site's MPI and the virtual environment with neocpu, for example:
#   NEOCPU_MODULES="mpich python" NEOCPU_VENV=$HOME/venv sbatch train.sh ...
[ -z "${NEOCPU_MODULES:-}" ] || module load $NEOCPU_MODULES
[ -z "${NEOCPU_VENV:-}" ] || . "$NEOCPU_VENV/bin/activate"

# rows of tables over SSD live on the disk of each node; OUT is on a disk that all nodes share
scratch=${SLURM_TMPDIR:-${TMPDIR:-/tmp}}/neocpu-rows-$SLURM_JOB_ID
# on each node after each rank, also of a cancelled job: a folder without rows goes
mkdir -p "$out"
tidy=$(realpath "$out")/.tidy-$SLURM_JOB_ID
printf '#!/bin/sh\nrmdir "%s" 2>/dev/null || true\n' "$scratch" > "$tidy"
chmod +x "$tidy"

# srun leaves the others waiting for a rank that was killed, unless told to end them, and since
# Slurm 22.05 does not hand on the job's cores for each task
options=(--kill-on-bad-exit=1 "--task-epilog=$tidy")
[ -z "${SLURM_CPUS_PER_TASK:-}" ] || options+=("--cpus-per-task=$SLURM_CPUS_PER_TASK")
srun "${options[@]}" neocpu train "$config" --out "$out" --resume \
    --set "memory.folder=$scratch" "$@" &
run=$!
[ -z "$warned" ] || kill -USR1 "$run" 2>/dev/null
while kill -0 "$run" 2>/dev/null; do
    wait "$run" # which a signal ends early
done
wait "$run"
status=$?
rm -f "$tidy"

# stopped by SIGUSR1 (128 + 10), with a checkpoint; a rank that was slow to end is killed: 137
if [ "$status" -eq 138 ] || { [ -n "$warned" ] && [ "$status" -ne 0 ]; }; then
    if [ "${SLURM_RESTART_COUNT:-0}" -lt "${NEOCPU_RESTARTS:-100}" ]; then
        job=$SLURM_JOB_ID
        [ -z "${SLURM_ARRAY_JOB_ID:-}" ] || job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
        # slurmctld may be away: each try then takes 10 s, and two minutes are left
        for try in 1 2 3 4 5 6; do
            scontrol requeue "$job" && exit
            sleep 5
        done
        echo "train.sh: $job could not be put back into the queue; submit it again to go on" >&2
    else
        echo "train.sh: restarted ${SLURM_RESTART_COUNT:-0} times; submit it again to go on" >&2
    fi
fi
exit "$status"
