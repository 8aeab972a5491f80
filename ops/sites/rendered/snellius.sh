#!/bin/bash
#SBATCH --job-name=atoll-run-snellius
#SBATCH --comment="atoll run run, site snellius; stop it: scancel; agents: atoll place halt"
#SBATCH --partition=gpu_h100
#SBATCH --nodes=1
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=LOGS/atoll-run-snellius.out
#SBATCH --signal=B:USR1@600
#SBATCH --account=FILL-IN-account
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=64
#SBATCH --gpus-per-node=4
#SBATCH --exclusive
#SBATCH --constraint=scratch-node
# Rendered and accepted by Slurm 22.05, not run at the centre. Read on 2026-11-30:
# [1] https://servicedesk.surf.nl/wiki/spaces/WIKI/pages/30660209/Snellius+partitions
# [2] https://servicedesk.surf.nl/wiki/display/WIKI/SLURM+batch+system
# [3] https://servicedesk.surfsara.nl/wiki/display/WIKI/Snellius+filesystems
# Job atoll-run-snellius of run run: it takes part as site snellius, and leaves well before its time
# limit. Rendered by atoll from a template; `atoll site script` prints it.
module purge
module load FILL-IN-modules
source "FILL-IN-environment/bin/activate"
export OMP_NUM_THREADS=16
set -u
# Node-local, and of this job alone: databases do not work on shared file systems.
export ATOLL_HOME="${TMPDIR:-/tmp}/atoll-$(id -un)-$SLURM_JOB_ID"
mkdir -p "$ATOLL_HOME"
export ATOLL_JOB_WALLTIME_S=86400
trap 'rm -rf "$ATOLL_HOME"' EXIT
trap 'kill -TERM "$atoll" 2>/dev/null' TERM USR1
atoll site run run snellius --data FILL-IN-data --walltime job --creds FILL-IN-credentials --ranks 4 --checkpoints FILL-IN-checkpoints &
atoll=$!
# `wait` returns at a signal, which was passed on; atoll may have gone by then, or not. Only the last
# one tells how it ended: bash keeps that of a child that has gone.
wait "$atoll"
while kill -0 "$atoll" 2>/dev/null; do wait "$atoll"; done
wait "$atoll"; code=$?
# 75 says that it may be started again; after any other end of atoll it is not.
if [ "$code" -eq 75 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt 50 ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
