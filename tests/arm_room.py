"""How is neocpu tried on ARM without such a machine? In a Debian of aarch64 that QEMU runs.

    python -m tests.arm_room FOLDER        # once, as root: half a gigabyte, a few minutes
    NEOCPU_ARM_ROOM=FOLDER pytest tests/test_arm.py

Needs Debian's packages mmdebstrap, qemu-user-static and unzip. The room has Debian's Python and the
aarch64 wheels of the versions that are installed here. Nothing of it is compiled or configured:
packages are unpacked, so no program of the other architecture runs while it is made.
"""

import argparse
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEBIAN = "python3,libgomp1,libstdc++6,coreutils,bash,dash,libc-bin,hostname"
RUN = ("numba", "numpy", "mpi4py", "h5py", "click", "rich", "polars", "jinja2")
TEST = ("pytest", "pytest-xdist", "hypothesis", "ml_dtypes", "scipy")
PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014")
# Debian 12's Python, for which wheels are chosen
FOR_ARM = ("--only-binary=:all:", "--python-version", "3.11", "--implementation", "cp")
FOR_ARM += tuple(word for name in PLATFORMS for word in ("--platform", f"{name}_aarch64"))
FOR_ARM += ("--abi", "cp311", "--abi", "abi3", "--abi", "none")
# How the kernel learns that QEMU runs programs of aarch64, and fixes it when it is told (F), so
# that the interpreter need not lie in the room.
FORMAT = Path("/proc/sys/fs/binfmt_misc")
MAGIC = (
    r":qemu-aarch64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00:"
    r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:{}:F"
)
# UCX and MPICH would read the memory of other processes, a call that QEMU does not have.
ENVIRONMENT = {
    "HOME": "/root",
    "PATH": "/usr/bin:/bin:/opt/mpich/bin",
    "LD_LIBRARY_PATH": "/opt/mpich/lib",
    "PYTHONPATH": "/opt/neocpu:/opt/site",
    "NEOCPU_CACHE_DIR": "/root/kernels",
    "UCX_TLS": "self,posix,sysv",
    "MPIR_CVAR_CH4_CMA_ENABLE": "0",
    "NUMBA_NUM_THREADS": "1",
}
# The room sees this machine's /proc, /dev and /sys, mounted for this process alone.
ENTER = (
    'for d in proc dev sys; do mkdir -p "$0/$d"; mount --rbind "/$d" "$0/$d"; done; '
    'exec chroot "$0" /usr/bin/env -i -C /opt/neocpu "$@"'
)


def make(room: Path) -> None:
    """Unpack Debian and the wheels into a folder that does not exist yet."""
    packages = ["mmdebstrap", "--arch=arm64", "--variant=extract", f"--include={DEBIAN}"]
    subprocess.run([*packages, "bookworm", str(room)], check=True)
    wheels = room / "opt" / "wheels"
    pinned = [f"{name}=={version(name)}" for name in (*RUN, *TEST, "mpich")]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "download", *FOR_ARM, "-d", str(wheels), *pinned], check=True)
    files = [str(path) for path in sorted(wheels.glob("*.whl"))]
    target = ["--target", str(room / "opt" / "site"), "--no-deps", "--no-compile"]
    subprocess.run([*pip, "install", *FOR_ARM, *target, *files], check=True)
    (mpich,) = wheels.glob("mpich-*.whl")  # its programs lie where --target does not look
    subprocess.run(["unzip", "-q", str(mpich), "-d", str(room / "opt" / "unpacked")], check=True)
    (data,) = (room / "opt" / "unpacked").glob("mpich-*.data/data")
    shutil.move(data, room / "opt" / "mpich")
    for program in (room / "opt" / "mpich" / "bin").iterdir():
        program.chmod(0o755)
    (room / "root").mkdir(exist_ok=True)
    (room / "tmp").mkdir(exist_ok=True)


def ready() -> str:
    """Why programs of aarch64 cannot be run here; "" where they can."""
    qemu = shutil.which("qemu-aarch64-static")
    if qemu is None:
        return "apt-get install qemu-user-static"
    try:
        if not (FORMAT / "register").exists():
            mount = ["mount", "-t", "binfmt_misc", "binfmt_misc", str(FORMAT)]
            subprocess.run(mount, check=True, capture_output=True)
        if not (FORMAT / "qemu-aarch64").exists():
            (FORMAT / "register").write_text(MAGIC.format(qemu))
    except (OSError, subprocess.CalledProcessError) as error:
        return f"root, to tell the kernel of QEMU ({error})"
    return ""


def bring_source(room: Path) -> None:
    """The source tree as it is now, without its history."""
    target = room / "opt" / "neocpu"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    # nothing is installed, but the version of the package is asked for
    record = room / "opt" / "site" / "neocpu.dist-info"
    record.mkdir(exist_ok=True)
    metadata = f"Metadata-Version: 2.1\nName: neocpu\nVersion: {version('neocpu')}\n"
    (record / "METADATA").write_text(metadata)
    for name in ("neocpu", "tests", "data", "docs", "examples", "pyproject.toml", "README.md"):
        source = ROOT / name
        if source.is_dir():
            noise = shutil.ignore_patterns("__pycache__", ".*")
            shutil.copytree(source, target / name, ignore=noise)
        else:
            shutil.copy(source, target / name)


def enter(
    room: Path, command: Sequence[str], seconds: float, more: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command in the room, in the source tree; more : variables of its environment."""
    variables = [f"{name}={value}" for name, value in {**ENVIRONMENT, **(more or {})}.items()]
    words = ["unshare", "-m", "bash", "-c", ENTER, str(room), *variables, *command]
    return subprocess.run(words, capture_output=True, text=True, timeout=seconds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="a folder that does not exist yet")
    make(parser.parse_args().folder.resolve())
