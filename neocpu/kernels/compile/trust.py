"""Where is the kernel cache, and may a file of it be loaded? Only if nobody else could have
written it.

A compiled kernel is code: whoever can write one into the cache runs programs as the user who loads
it. Folders and files must therefore belong to this user or to root, and be writable by them alone.
A folder with the sticky bit (as /tmp) may be written by others, who cannot replace files of ours
there; theirs are refused one by one.
"""

import os
import stat
from pathlib import Path

try:
    import grp
    import pwd
except ImportError:  # not on Windows
    grp = None  # type: ignore[assignment]
    pwd = None  # type: ignore[assignment]

__all__ = ["base_folder", "distrust", "read"]


def distrust(path: Path) -> str:
    """Why others may have written what is at this path; "" if they cannot, or nothing is there."""
    try:
        return _reason(path.stat())
    except OSError:
        return ""


def read(path: Path) -> tuple[bytes, str]:
    """(content of a file, why it cannot be used); no content unless that is "".

    Raises OSError where it cannot be read. A pipe, which would block for ever, is not.
    """
    # opened, then asked: between a look at the path and opening it, the file could be replaced
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return b"", "it is no regular file"
        if reason := _reason(status):
            return b"", reason
        return file.read(), ""


def _reason(status: os.stat_result) -> str:
    if not hasattr(os, "geteuid"):
        return ""  # no owners and modes as POSIX has them
    user = os.geteuid()
    if status.st_uid not in (user, 0):
        return f"it belongs to another user ({_user_name(status.st_uid)})"
    if stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX:
        return ""
    if status.st_mode & stat.S_IWOTH:
        return f"everybody can write to it (mode {stat.S_IMODE(status.st_mode):04o})"
    if status.st_mode & stat.S_IWGRP and not _is_private(status.st_gid, user):
        mode = stat.S_IMODE(status.st_mode)
        return f"group {_group_name(status.st_gid)} can write to it (mode {mode:04o})"
    return ""


def _is_private(group: int, user: int) -> bool:
    """Is it root's group, or the one of this user alone that many systems give every user?"""
    if group == 0:
        return True
    try:
        account = pwd.getpwuid(user)
        entry = grp.getgrgid(group)
    except KeyError:
        return False
    own = account.pw_gid == group and entry.gr_name == account.pw_name
    return own and set(entry.gr_mem) <= {account.pw_name}


def _user_name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"number {user}"


def _group_name(group: int) -> str:
    try:
        return grp.getgrgid(group).gr_name
    except KeyError:
        return f"number {group}"


def base_folder() -> Path:
    """The user's folder for what neocpu can make again.

    NEOCPU_CACHE_DIR, else neocpu in XDG_CACHE_HOME, else ~/.cache/neocpu.
    """
    return Path(
        os.environ.get("NEOCPU_CACHE_DIR")
        or os.path.join(
            os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "neocpu"
        )
    )
