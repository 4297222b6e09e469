"""The wire without the wires: frames in, typed commands and frames out.

No asyncio and no sockets here. `app/gateway` reads bytes, hands them to this
package, carries out the commands it gets back and writes the frames it gets back.

Modules:
    json_codec: strict JSON with a depth limit, naming the field that is wrong.
    fields: typed access to a decoded object's fields.
    errors: the contract's errors as HTTP answers, stream errors and socket events.
    ids: server-made identifiers.
    sampling: sampling fields of any API as `SamplingParams`.
    chat: `/v1/chat/completions`, plain and streamed.
    models: `/v1/models`.
    realtime: `/v1/realtime`, the text subset.
"""
