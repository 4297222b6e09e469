"""`/v1/realtime`: the text subset of OpenAI's Realtime API, and Repartee's additions.

Modules:
    items: conversation items, read and rendered.
    settings: what `session.update` may change.
    commands: client events as typed commands.
    wire: one connection's frames in, commands out; ids and duplicates.
    response: one response's engine events as server events.
"""
