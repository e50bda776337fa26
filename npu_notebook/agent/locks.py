"""Which cluster of any user has which device of this host.

One file per device in a folder that every user may write; whoever holds the file's
lock has the device. The kernel drops the lock with its holder, so a crash leaves
nothing stale. What the file says about the holder is for people only.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import stat
import tempfile
from pathlib import Path

_FOLDER_MODE = 0o1777
_FILE_MODE = 0o666
_TEXT_NBYTES = 200


class DeviceLocks:
    """The devices that this process has locked.

    Parameters
    ----------
    cluster : str
        Name of the cluster, told to whoever finds a device taken.
    folder : Path, optional
        By default one that all users of this host share.
    """

    def __init__(self, cluster: str, folder: Path | None = None) -> None:
        self._cluster = cluster
        self._folder = folder or default_folder()
        self._held: dict[tuple[str, int], int] = {}

    def take(self, provider: str, device: int) -> str:
        """Lock a device; return "" or a sentence that says who has it.

        A device that this cluster has already stays locked.

        Raises
        ------
        OSError
            If the folder cannot be used.
        """
        if (provider, device) in self._held:
            return ""
        fd = self._open(provider, device)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _read_holder(fd)
            os.close(fd)
            return f"{provider} device {device} is in use by {holder}"
        text = f"cluster '{self._cluster}' of user {_user()} (agent pid {os.getpid()})"
        os.ftruncate(fd, 0)
        os.pwrite(fd, text.encode()[:_TEXT_NBYTES], 0)
        self._held[provider, device] = fd
        return ""

    def list_holders(self, provider: str, count: int) -> tuple[str, ...]:
        """Return who else holds any of the first ``count`` devices, one text each."""
        holders: list[str] = []
        for device in range(count):
            if (provider, device) in self._held:
                continue
            sentence = self.take(provider, device)
            if sentence:
                holders.append(sentence)
            else:
                self._release(provider, device)
        return tuple(holders)

    def release_all(self) -> None:
        """Give all devices back."""
        for provider, device in list(self._held):
            self._release(provider, device)

    def _release(self, provider: str, device: int) -> None:
        os.close(self._held.pop((provider, device)))

    def _open(self, provider: str, device: int) -> int:
        _make_folder(self._folder)
        path = self._folder / f"{provider}-{device}"
        safe = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            fd = os.open(path, safe | os.O_CREAT | os.O_EXCL, _FILE_MODE)
            os.fchmod(fd, _FILE_MODE)  # whatever the umask is: other users lock it too
        except FileExistsError:
            # Without O_CREAT: the kernel refuses that for another user's file in a
            # sticky folder. Source: proc_sys_fs(5), protected_regular.
            fd = os.open(path, safe)
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            # A link would let its maker have us write into a file of ours.
            os.close(fd)
            raise OSError(errno.EPERM, "not a plain file; remove it", str(path))
        return fd


def default_folder() -> Path:
    """Return the folder that all users of this host share."""
    chosen = os.environ.get("NPU_NOTEBOOK_DEVICE_LOCK_DIR")
    if chosen:
        return Path(chosen)
    shared = Path("/tmp")  # noqa: S108  not TMPDIR, which differs between users
    return (
        shared if shared.is_dir() else Path(tempfile.gettempdir())
    ) / "npu-notebook-devices"


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir()
        folder.chmod(_FOLDER_MODE)
    except FileExistsError:
        if not stat.S_ISDIR(folder.lstat().st_mode):
            raise OSError(errno.ENOTDIR, "not a folder", str(folder)) from None


def _read_holder(fd: int) -> str:
    text = os.pread(fd, _TEXT_NBYTES, 0).decode(errors="replace")
    shown = "".join(letter for letter in text if letter.isprintable())
    return shown or "a cluster that just started"


def _user() -> str:
    # Not getpass, which believes the environment.
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a uid without an account, as in containers
        return str(os.getuid())
