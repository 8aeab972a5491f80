"""Five faults on the shard service of DLRover 0.6.1, as it is installed from PyPI.

    python -m venv v && v/bin/pip install dlrover==0.6.1 protobuf grpcio && v/bin/python THIS_FILE

Drives the real `TaskManager` of its master, in one process, with the calls that its servicer makes;
nothing of it is changed. What came out stands beside this file. atoll's answers to the same faults:
tests/leases/test_five_faults.py; both in a table: docs/comparison.md.
"""

import logging
import time

from dlrover.proto import elastic_training_pb2
from dlrover.python.common import comm
from dlrover.python.common.constants import NodeType
from dlrover.python.master.monitor.perf_monitor import PerfMonitor
from dlrover.python.master.shard.dataset_splitter import new_dataset_splitter
from dlrover.python.master.shard.task_manager import TaskManager

logging.disable(logging.CRITICAL)
NAME, SIZE, BATCH = "data", 40, 10  # four shards of one batch


def master(timeout_s: int = 1) -> TaskManager:
    manager = TaskManager(timeout_s, PerfMonitor())
    splitter = new_dataset_splitter(False, BATCH, SIZE, 1, NAME, "table")
    manager.new_dataset(BATCH, SIZE, NAME, splitter, elastic_training_pb2.TRAINING)
    return manager


def take(manager: TaskManager, worker: int):
    task = manager.get_dataset_task(NodeType.WORKER, worker, NAME)
    return (task.task_id, (task.shard.start, task.shard.end)) if task.task_id >= 0 else None


def report(manager: TaskManager, task_id: int, success: bool) -> bool:
    """Whether a worker's report is taken. It names no worker: only the task."""
    done, _ = manager.report_dataset_task(comm.TaskResult(NAME, task_id, ""), success)
    return done is not None


def dies(manager: TaskManager, worker: int) -> None:
    manager.recover_tasks(NodeType.WORKER, worker)


def drain(manager: TaskManager, worker: int) -> list:
    """All other shards, trained and reported by one worker."""
    shards = []
    while (found := take(manager, worker)) is not None:
        shards.append(found[1])
        report(manager, found[0], True)
    return shards


def zombie_success() -> None:
    manager = master()
    number, shard = take(manager, 0)
    others = [take(manager, 9) for _ in range(3)]
    dies(manager, 0)
    again = take(manager, 1)
    print(f"  worker 0 held {shard}, was declared dead; worker 1 now holds {again[1]}")
    print(f"  worker 0 comes back and reports success: taken: {report(manager, number, True)}")
    print(f"  worker 1, who holds it, reports success: taken: {report(manager, again[0], True)}")
    del others


def zombie_failure() -> None:
    manager = master()
    number, shard = take(manager, 0)
    others = [take(manager, 9) for _ in range(3)]
    dies(manager, 0)
    take(manager, 1)
    report(manager, number, False)
    print(f"  worker 1 trains {shard}; worker 0, declared dead, reports failure")
    print(f"  worker 2 asks for work and gets {take(manager, 2)[1]}, while worker 1 trains it")
    del others


def four_deaths() -> None:
    manager = master()
    _, shard = take(manager, 0)
    others = [take(manager, 9) for _ in range(3)]
    for death in range(1, 5):
        if death > 1:
            assert take(manager, death)[1] == shard
        dies(manager, death if death > 1 else 0)
    for number, _ in others:
        report(manager, number, True)
    steps = manager.get_dataset(NAME).get_completed_step()
    print(f"  four holders of {shard} died; a fifth worker gets {take(manager, 5)}")
    print(f"  finished: {manager.finished()}, with {steps} of {SIZE // BATCH} batches completed")


def hung_holder() -> None:
    manager = master(timeout_s=1)
    _, shard = take(manager, 0)
    drain(manager, 1)
    manager._worker_start_task_time[0] = time.time() - 3600  # an hour without a report
    manager.start()  # its own thread looks for tasks that timed out
    time.sleep(32)  # it looks every 30 s
    held = [(d.node_id, (d.task.shard.start, d.task.shard.end))
            for d in manager.get_dataset(NAME).doing.values()]  # fmt: skip
    print(f"  worker 0 took {shard} and hangs for an hour; time-out is 1 s")
    print(f"  still held: {held}; worker 1 gets {take(manager, 1)}; finished: {manager.finished()}")


def master_restart() -> None:
    manager = master()
    done = [take(manager, 0) for _ in range(3)]
    for number, _ in done:
        report(manager, number, True)
    manager = master()  # a new process: nothing of the old one is stored
    print(f"  3 of 4 shards were completed; after the restart are handed out: {drain(manager, 0)}")


for fault in (zombie_success, zombie_failure, four_deaths, hung_holder, master_restart):
    print(f"{fault.__name__.replace('_', ' ')}:")
    fault()
