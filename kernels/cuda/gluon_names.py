"""Gluon's names that differ from one version of Triton to the next."""

from __future__ import annotations

from triton.experimental.gluon import language as gl

# Waits for all threads of a program: renamed in Triton 3.7.
thread_barrier = gl.thread_barrier if hasattr(gl, "thread_barrier") else gl.barrier
