"""``!command`` of a cell: a shell command whose output appears as it is written."""

from __future__ import annotations

import codecs
import errno
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios

_READ_NBYTES = 65_536
_LOOK_S = 0.1
_LEAVE_S = 1.0
_ROWS, _COLUMNS = 24, 100


def run_command(command: str) -> int:
    """Run a command in ``sh`` and print what it prints, unaltered.

    It sees a terminal, because most programs keep their output back otherwise.

    Returns
    -------
    int
        Exit status; minus the number of the signal that ended it.
    """
    terminal_fd, inner_fd = pty.openpty()
    try:
        try:
            _set_up(inner_fd)
            process = subprocess.Popen(  # noqa: S602  a shell is what `!` asks for
                command,
                shell=True,
                stdin=subprocess.DEVNULL,
                stdout=inner_fd,
                stderr=inner_fd,
            )
        finally:
            os.close(inner_fd)
        with process:
            _copy_until_end(process, terminal_fd)
        return process.returncode
    finally:
        os.close(terminal_fd)


def _set_up(inner_fd: int) -> None:
    """Let bytes through as they are: no carriage return before each new line."""
    settings = termios.tcgetattr(inner_fd)
    settings[1] &= ~termios.OPOST
    settings[3] &= ~termios.ECHO
    termios.tcsetattr(inner_fd, termios.TCSANOW, settings)
    size = struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0)
    fcntl.ioctl(inner_fd, termios.TIOCSWINSZ, size)


def _copy_until_end(process: subprocess.Popen[bytes], terminal_fd: int) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
    try:
        while _copy(terminal_fd, decoder, _LOOK_S):
            if process.poll() is not None:
                # What a background process still prints is not waited for.
                while _copy(terminal_fd, decoder, 0.0):
                    continue
                break
        process.wait()
    except KeyboardInterrupt:
        # The interrupt has reached the command too; a deaf one is killed.
        try:
            process.wait(_LEAVE_S)
        except subprocess.TimeoutExpired:
            process.kill()
        while _copy(terminal_fd, decoder, 0.0):
            continue
        raise
    sys.stdout.write(decoder.decode(b"", final=True))


def _copy(
    terminal_fd: int, decoder: codecs.IncrementalDecoder, timeout_s: float
) -> bool:
    """Copy once; False at the end, or when there was nothing and no time to wait."""
    if not select.select((terminal_fd,), (), (), timeout_s)[0]:
        return timeout_s > 0
    try:
        data = os.read(terminal_fd, _READ_NBYTES)
    except OSError as error:
        if error.errno != errno.EIO:  # how Linux says that the other end is closed
            raise
        return False
    sys.stdout.write(decoder.decode(data))
    return bool(data)
