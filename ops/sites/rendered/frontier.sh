#!/bin/bash
#SBATCH --job-name=atoll-run-frontier
#SBATCH --comment="atoll run run, site frontier; stop it: scancel; agents: atoll place halt"
#SBATCH --partition=batch
#SBATCH --nodes=1
#SBATCH --time=02:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=LOGS/atoll-run-frontier.out
#SBATCH --signal=B:USR1@600
#SBATCH --account=FILL-IN-account
#SBATCH --gpus-per-node=8
#SBATCH --constraint=nvme
# Rendered and accepted by Slurm 22.05, not run at the centre. Read on 2026-11-30:
# [1] https://docs.olcf.ornl.gov/systems/frontier_user_guide.html
# [2] https://docs.olcf.ornl.gov/software/analytics/pytorch_frontier.html
# Job atoll-run-frontier of run run: it takes part as site frontier, and leaves well before its time
# limit. Rendered by atoll from a template; `atoll site script` prints it.
module load PrgEnv-gnu/8.7.0
module load cpe/26.03
module load miniforge3/23.11.0-0
module load rocm/7.1.1
module load craype-accel-amd-gfx90a
export LD_LIBRARY_PATH="${CRAY_LD_LIBRARY_PATH:-}:${LD_LIBRARY_PATH:-}"
source activate FILL-IN-environment
export TMPDIR="/mnt/bb/$USER"
export MIOPEN_USER_DB_PATH="$TMPDIR/miopen-$SLURM_JOB_ID"
export MIOPEN_CUSTOM_CACHE_DIR="$MIOPEN_USER_DB_PATH"
mkdir -p "$MIOPEN_USER_DB_PATH"
# Compute nodes reach the outside by a proxy alone [2]: hence credentials of --websocket.
export https_proxy=http://proxy.ccs.ornl.gov:3128/ HTTPS_PROXY=http://proxy.ccs.ornl.gov:3128/
export MASTER_ADDR=$(hostname -i) MASTER_PORT=3442 OMP_NUM_THREADS=7
set -u
# Node-local, and of this job alone: databases do not work on shared file systems.
export ATOLL_HOME="${TMPDIR:-/tmp}/atoll-$(id -un)-$SLURM_JOB_ID"
mkdir -p "$ATOLL_HOME"
export ATOLL_JOB_WALLTIME_S=7200
trap 'rm -rf "$ATOLL_HOME"' EXIT
trap 'kill -TERM "$atoll" 2>/dev/null' TERM USR1
atoll site run run frontier --data FILL-IN-data --walltime job --creds FILL-IN-credentials --launcher 'srun --nodes=1 --ntasks=8 --cpus-per-task=7 --gpus-per-task=1 --gpu-bind=closest bash -c '"'"'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS exec "$0" "$@"'"'"' python' --checkpoints FILL-IN-checkpoints &
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
