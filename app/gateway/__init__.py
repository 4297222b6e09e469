"""Sockets and HTTP: what touches the network around `app/protocol`.

Modules:
    config: how one gateway process is set.
    transport: uvicorn's connections with bounded buffers, and a way to cut them.
    writer: the one writer of a socket.
    origins: which web pages may call.
    responses: requests to the engine, followed to their end and counted.
    metrics: counters and histograms.
    chat, realtime, models, health, pages: the routes.
    server: the application, and the process that serves it.
"""
