"""`/v1/responses`: requests read and checked, responses and their events rendered.

Modules:
    request: the body of a create, whichever way it comes.
    items: input items, read and shown.
    objects: a response as JSON, and lists of items.
    events: the events of a response, numbered so that they can be resumed.
    commands: the client events of a WebSocket.
"""
