"""Becomes another program that ends with its parent.

Run as a script between the supervisor and each of its children, with the standard
library's bare start-up: `child.py SIGNAL PARENT LISTEN_FD PROGRAM ARGUMENT...`. The
process id stays the same, so the supervisor watches the program itself.

A parent killed outright can't stop anybody; the kernel then sends SIGNAL here. A
LISTEN_FD other than -1 is handed on in the manner of systemd's socket activation:
as descriptor 3, with LISTEN_FDS and LISTEN_PID set.
"""

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1
ACTIVATION_FD = 3


def die_with_parent(signal_number: int, parent: int) -> None:
    """Ask the kernel for `signal_number` when `parent` ends; at once if it has ended."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_PDEATHSIG, signal_number, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    # The parent may have ended before the request above.
    if os.getppid() != parent:
        os.kill(os.getpid(), signal_number)


def hand_on_socket(descriptor: int) -> None:
    """Make a listening socket descriptor 3 and announce it to this process."""
    if descriptor != ACTIVATION_FD:
        os.dup2(descriptor, ACTIVATION_FD)
        os.close(descriptor)
    os.set_inheritable(ACTIVATION_FD, True)
    os.environ["LISTEN_FDS"] = "1"
    os.environ["LISTEN_PID"] = str(os.getpid())


def main(arguments: list[str]) -> None:
    """See the module."""
    signal_number, parent, descriptor = map(int, arguments[:3])
    program = arguments[3:]
    die_with_parent(signal_number, parent)
    if descriptor >= 0:
        hand_on_socket(descriptor)
    os.execvp(program[0], program)


if __name__ == "__main__":
    main(sys.argv[1:])
