"""Sockets and HTTP: what touches the network around `app/protocol`.

Modules:
    config: how one gateway process is set.
    transport: uvicorn's HTTP connections with bounded buffers, and a way to cut them.
    socket_connection, socket_handshake: a WebSocket from its handshake to its end.
    socket_route, event_inbox: what every WebSocket route does; events carried out in order.
    keepalive, partials, snapshots: pings, half messages, whole conversations: of all sockets.
    failed_logins, log_bounds, garbage: strangers and the garbage collector held in bounds.
    writer: the one writer of a socket.
    throttle: makes a fast sender wait.
    origins: which web pages may call.
    edge: what every request passes first: host, origin, key.
    responses: answers under way, followed to their end.
    metrics: counters and histograms.
    chat, event_stream, bodies: `/v1/chat/completions`.
    realtime, realtime_socket: `/v1/realtime`, from the upgrade to the end.
    conversation, prompt, resume, running: a session's items and its responses.
    models, health, pages: the other routes.
    server: the application, and the process that serves it.
"""
