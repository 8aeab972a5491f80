"""What this machine trains on, chosen and described in one place for CPU, CUDA and ROCm."""

from __future__ import annotations

import ctypes
import os
import platform
from importlib.metadata import version

import torch

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


def be_alone() -> None:
    """This process is the only rank, whatever a batch system or a script has set for others."""
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"):
        os.environ.pop(name, None)


def num_ranks() -> int:
    """How many ranks torchrun has started for this site; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def this_rank() -> int:
    """The number of this one, from 0."""
    return int(os.environ.get("RANK", "0"))


def pick_device() -> torch.device:
    """The accelerator of this process (torch names ROCm's "cuda" too), or the CPU. Of several, the
    one of this rank's number on its node."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())


def set_up(num_threads: int) -> None:
    """The thread budget of a process that trains, and how it holds memory; to be called before its
    first operation."""
    torch.set_num_threads(num_threads)
    torch.set_num_interop_threads(1)
    _keep_freed_memory()


def _keep_freed_memory() -> None:
    """A step frees what the next one asks for again. Without this the C library gives it back to
    the system each time, and a small model spends a sixth of its time in page faults. Where there
    is no glibc nothing changes."""
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # torch: huge pages for large tensors
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)  # the most that glibc takes
        mallopt(_M_TRIM_THRESHOLD, 512 << 20)


def hardware(device: torch.device) -> dict[str, str]:
    """The machine in words, as `SiteJoined` carries it."""
    words = {
        "device": _device_name(device),
        "processor": _processor(),
        "num_cpus": str(len(os.sched_getaffinity(0)) if _has_affinity() else os.cpu_count() or 1),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        words["accelerator"] = properties.name
        words["accelerator_memory_bytes"] = str(properties.total_memory)
    return words


def software(device: torch.device) -> dict[str, str]:
    """Versions that numbers can depend on, as `SiteJoined` carries them."""
    words = {
        "atoll": version("atoll"),
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "system": platform.platform(),
    }
    if device.type == "cuda":
        words[_device_name(device)] = str(torch.version.hip or torch.version.cuda)
    return words


def _device_name(device: torch.device) -> str:
    return "rocm" if device.type == "cuda" and torch.version.hip else device.type


def _has_affinity() -> bool:
    return hasattr(os, "sched_getaffinity")


def _processor() -> str:
    """The processor's name; Linux keeps it in a file of its own."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                key, _, value = line.partition(":")
                if key.strip() == "model name":
                    return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
