"""The worker process: Redis on an asyncio loop, the engine on its own thread.

Modules:
    redis_client: one pipelined Redis connection that the worker controls itself.
    engine_thread: the step loop, and what it asks of an engine.
    route: one response's events and where they go.
    batch: one pipeline of writes to response logs and to listening gateways.
    publisher: what is written, when, and again after Redis was lost.
    requests: checked, tokenised, cancelled, ended in time.
    leases: kept while they last, and given back.
    adoption: responses that this worker was given by others.
    drafts: prompts that are still being typed, on their way to the engine.
    inbox: commands from the worker's inbox stream.
    heartbeat: `WorkerState`, twice a second.
    metrics: the names and meanings of the worker's counters.
    worker: the process's life: start, serve, drain, stop.
"""
