#!/bin/bash
# One run for each learning rate: sbatch array.sh CONFIG OUT, in the folder of train.sh
#
# Every task has a folder of its own, OUT/TASK. Two runs cannot share one: it is locked, and the
# second ends at once and says who holds it.
#SBATCH --job-name=neocpu-rates
#SBATCH --array=0-3
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=4
#SBATCH --time=04:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%A-%a.log
set -u
rates=(0.01 0.02 0.05 0.1)
rate=${rates[$SLURM_ARRAY_TASK_ID]}
# exec: the shell that Slurm warns becomes that of train.sh
exec bash "$SLURM_SUBMIT_DIR/train.sh" "$1" "$2/$SLURM_ARRAY_TASK_ID" \
    --set "optimizer.sparse.learning_rate=$rate"
