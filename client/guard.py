"""Becomes a command that the kernel kills when its parent dies: ``guard.py PARENT_PID PROGRAM ARGUMENT...``.

A launcher that is killed cannot stop its services; this is set in the child itself and survives exec, without code
between fork and exec in a process with threads. The parent is the thread that forked. Linux only; elsewhere the
command simply runs.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            sys.exit(f"guard: prctl failed: {os.strerror(ctypes.get_errno())}")
        if os.getppid() != int(sys.argv[1]):
            sys.exit("guard: the parent died before its service started")
    os.execv(sys.argv[2], sys.argv[2:])
