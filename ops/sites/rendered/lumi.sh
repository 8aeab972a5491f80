#!/bin/bash
#SBATCH --job-name=atoll-run-lumi
#SBATCH --comment="atoll run run, site lumi; stop it: scancel; agents: atoll place halt"
#SBATCH --partition=standard-g
#SBATCH --nodes=1
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=LOGS/atoll-run-lumi.out
#SBATCH --signal=B:USR1@600
#SBATCH --account=FILL-IN-account
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=56
#SBATCH --gpus-per-node=8
#SBATCH --mem=480G
# Rendered and accepted by Slurm 22.05, not run at the centre. Read on 2026-11-30:
# [1] https://docs.lumi-supercomputer.eu/runjobs/scheduled-jobs/partitions/
# [2] https://docs.lumi-supercomputer.eu/runjobs/scheduled-jobs/lumig-job/
# [3] https://github.com/Lumi-supercomputer/LUMI-AI-Guide, chapters 02 and 05
# Job atoll-run-lumi of run run: it takes part as site lumi, and leaves well before its time
# limit. Rendered by atoll from a template; `atoll site script` prints it.
module purge
module use /appl/local/laifs/modules
module load lumi-aif-singularity-bindings
export MIOPEN_USER_DB_PATH="/tmp/miopen-$SLURM_JOB_ID"
export MIOPEN_CUSTOM_CACHE_DIR="$MIOPEN_USER_DB_PATH"
mkdir -p "$MIOPEN_USER_DB_PATH"
set -u
# Node-local, and of this job alone: databases do not work on shared file systems.
export ATOLL_HOME="${TMPDIR:-/tmp}/atoll-$(id -un)-$SLURM_JOB_ID"
mkdir -p "$ATOLL_HOME"
export ATOLL_JOB_WALLTIME_S=86400
trap 'rm -rf "$ATOLL_HOME"' EXIT
trap 'kill -TERM "$atoll" 2>/dev/null' TERM USR1
singularity run FILL-IN-image FILL-IN-environment/bin/atoll site run run lumi --data FILL-IN-data --walltime job --creds FILL-IN-credentials --launcher 'FILL-IN-environment/bin/python -m torch.distributed.run --numa-binding=exclusive --standalone --max-restarts 0 --nproc-per-node 8' --checkpoints FILL-IN-checkpoints &
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
