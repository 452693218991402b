"""How much of this machine may this process use? Its cores, their time, and memory.

Kernel threads may each have a core of their own. A new thread inherits the cores of its creator,
and a process those of its parent: the helpers of a bound thread therefore say `roam()` first, or
they would share its one core.

Containers, schedulers and services limit time and memory by Linux's control groups, of version 1 or
2; the group of the process counts, and all groups above it.
"""

import ctypes
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

__all__ = [
    "ADDRESS_LIMIT",
    "KILLING",
    "addresses_left",
    "available",
    "boot_id",
    "core_quota",
    "end_with_parent",
    "host_key",
    "host_memory",
    "is_running",
    "memory_kills",
    "memory_left",
    "memory_limit",
    "private_bytes",
    "roam",
    "usable_memory",
]

# at import, before any thread is bound to a core of its own
_AT_START = frozenset(
    os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
)
GROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
BOOT = Path("/proc/sys/kernel/random/boot_id")
NO_LIMIT = float("inf")
# files of limits of version 2 and of version 1; above memory.high nobody is killed, but the system
# makes processes wait until they hardly move
KILLING = ("memory.max", "memory.limit_in_bytes")
LIMITS = (*KILLING, "memory.high")
ADDRESS_LIMIT = "`ulimit -v`, Grid Engine's h_vmem"  # where addresses are limited
# a limit of version 1 above this is none
MOST_BYTES = 1 << 60
_PR_SET_PDEATHSIG = 1  # of Linux's prctl


def available() -> set[int]:
    """Numbers of the cores that this process was given."""
    return set(_AT_START)


def roam() -> None:
    """Let the calling thread run on all of them."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, _AT_START)  # 0: the calling thread


def core_quota() -> float:
    """Cores' worth of time that this process may use, infinity where nobody limits it."""
    # the tightest of a group and those above it counts
    quotas = [NO_LIMIT]
    for group in _groups("cpu"):
        words = _read(group / "cpu.max").split()
        if not words:
            # version 1; its -1 for no limit is no number to `isdigit`
            limit = _read(group / "cpu.cfs_quota_us").strip()
            words = [limit, _read(group / "cpu.cfs_period_us").strip()]
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas)


def memory_left() -> float:
    """Bytes that limits on this process leave it, infinity where nobody limits it.

    Files that were read and are not in use count as free.
    """
    # the page cache counts as used, but gives way when memory is asked for
    left = (max(limit - used + _reclaimable(group), 0) for limit, used, group in _memory_limits())
    return min(left, default=NO_LIMIT)


def addresses_left() -> float:
    """Bytes that this process may still map, touched or not; infinity where nobody limits it."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return NO_LIMIT
    pages = _read(Path("/proc/self/statm")).split()[:1]
    return max(limit - resource.getpagesize() * sum(map(int, pages)), 0)


def host_memory() -> int:
    """Bytes of memory that this host has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def usable_memory() -> int:
    """Bytes of memory of this host, or of its container."""
    return int(min(host_memory(), memory_limit()))


def memory_limit(names: Sequence[str] = LIMITS) -> float:
    """Bytes that this process and those of its group may use, infinity where nobody limits it.

    names : files of the limits that count; KILLING: those at which the system kills.
    """
    return min((limit for limit, _, _ in _memory_limits(names)), default=NO_LIMIT)


def memory_kills() -> int:
    """How often limits on this process left no memory so far, and the system killed for it."""
    kills = 0
    for _, _, group in _memory_limits(KILLING):
        # of version 2, where "oom_kill" counts what the host killed for want of its own memory too
        counts = _counts(group / "memory.events.local") or _counts(group / "memory.events")
        kills += int(counts.get("oom", 0))
        # of version 1
        kills += int(_counts(group / "memory.oom_control").get("oom_kill", 0))
    return kills


def private_bytes() -> int:
    """Bytes of memory that this process alone holds; 0 where the system does not tell."""
    lines = _read(Path("/proc/self/smaps_rollup")).splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


def end_with_parent() -> None:
    """From now on this process is killed when the thread that started it ends; Linux alone can."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def is_running(process: int) -> bool:
    """Whether a process of this host, by its number, is there, or may be."""
    try:
        # signal 0 is not sent: it only asks whether the process is there
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        # somebody else's, or no number that a process can have
        return True
    return True


def _memory_limits(names: Sequence[str] = LIMITS) -> Iterator[tuple[int, int, Path]]:
    """Limit and use of each group that has a limit, and the group."""
    for group in _groups("memory"):
        used = _read(group / "memory.current") or _read(group / "memory.usage_in_bytes")
        texts = [_read(group / name).strip() for name in names]
        limits = [int(text) for text in texts if text.isdigit()]
        limit = min(limits, default=MOST_BYTES)
        if used.strip().isdigit() and limit < MOST_BYTES:
            yield limit, int(used), group


def _reclaimable(group: Path) -> int:
    """Bytes of a group that hold files which nobody has used of late."""
    counts = _counts(group / "memory.stat")
    text = counts.get("total_inactive_file", counts.get("inactive_file", "0"))
    return int(text) if text.isdigit() else 0


def _counts(path: Path) -> dict[str, str]:
    """The lines of a file of a group, each a name and a number."""
    return dict(line.split()[:2] for line in _read(path).splitlines())


def _groups(controller: str) -> Iterator[Path]:
    """Folders of the groups that limit this process, its own first."""
    for line in _read(MEMBERSHIP).splitlines():
        # a line of version 2 names no controllers: its one tree has all of them
        _, controllers, name = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = GROUPS / controllers if controllers else GROUPS
        # controllers that share a hierarchy may have links of their own names only
        if controllers and not root.is_dir():
            root = GROUPS / controller
        group = root / name.lstrip("/")
        for folder in (group, *group.parents):
            if folder.is_relative_to(root):
                yield folder


def _read(path: Path) -> str:
    """The text of a file of the system, "" where it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""


def boot_id() -> str:
    """Of the system that runs here, another one at each start; "" where it has none."""
    return _read(BOOT).strip()


def host_key() -> str:
    """The same for processes that share memory and process numbers."""
    # machines that were copied have one name, and the numbers of the rest are the same on them
    facts = [socket.gethostname(), boot_id()]
    for name in ("/proc/self/ns/pid", "/dev/shm"):
        with suppress(OSError):
            status = os.stat(name)
            facts.append(f"{status.st_dev}.{status.st_ino}")
    return "/".join(facts)
