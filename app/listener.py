"""The gateway's listening socket: opened here or inherited, with clear refusals."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Mapping

from app.child import ACTIVATION_FD
from app.startup_error import StartupError

BACKLOG = 2048


def open_listener(host: str, port: int) -> socket.socket:
    """A TCP socket that listens on the address; port 0 takes a free one.

    Raises:
        StartupError: the address is taken, not ours, forbidden, or no address.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise StartupError(f"--host {host} is no address: {error.strerror}.") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise _refusal(host, port, error) from None
    listener.setblocking(False)
    return listener


def _refusal(host: str, port: int, error: OSError) -> StartupError:
    if error.errno == errno.EADDRINUSE:
        return StartupError(
            f"Port {port} on {host} is in use.", "Name another with --port; 0 takes a free one."
        )
    if error.errno == errno.EACCES:
        return StartupError(
            f"Port {port} on {host} needs privileges this user lacks.", "Name one above 1023."
        )
    return StartupError(f"Cannot listen on {host} port {port}: {error.strerror}.")


def inherited_listener(environ: Mapping[str, str]) -> socket.socket | None:
    """The socket that a supervisor handed on (systemd's LISTEN_FDS), if one did."""
    if environ.get("LISTEN_PID") != str(os.getpid()) or environ.get("LISTEN_FDS") != "1":
        return None
    listener = socket.socket(fileno=ACTIVATION_FD)
    listener.set_inheritable(False)
    listener.setblocking(False)
    return listener


def address_for_clients(listener: socket.socket) -> tuple[str, int]:
    """Host and port under which this machine reaches the listener."""
    host, port = listener.getsockname()[:2]
    if host == "0.0.0.0":
        return "127.0.0.1", port
    return ("::1" if host == "::" else host), port


def url_of(listener: socket.socket) -> str:
    """The page's address."""
    host, port = address_for_clients(listener)
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
