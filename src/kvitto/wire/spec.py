"""Every method that Kvitto supports, as one table: AMQP 0-9-1, RabbitMQ's extensions, and Kvitto's classes `log` and
`stage`.

`generate.py` makes `methods.py` of it. A line without indentation begins a class (`id name`). An indented line is a
method (`id name: fields`), and a field is `name/type`; `-` is a reserved field, written as zero, read and ignored.
Types are octet, short, long, longlong (unsigned), bit, str (short string, UTF-8), bytes (long string) and table.

docs/protocol-extensions.md describes the classes `log` (19286, "KV") and `stage` (19287).
"""

FRAME_METHOD = 1
FRAME_HEADER = 2
FRAME_BODY = 3
FRAME_HEARTBEAT = 8
FRAME_END = 206
FRAME_OVERHEAD = 8
"""Bytes around a frame's payload: type, channel and length before it, the end octet after it."""

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"

METHOD_TABLE = """
10 connection
    10 start: version_major/octet version_minor/octet server_properties/table mechanisms/bytes locales/bytes
    11 start-ok: client_properties/table mechanism/str response/bytes locale/str
    20 secure: challenge/bytes
    21 secure-ok: response/bytes
    30 tune: channel_max/short frame_max/long heartbeat/short
    31 tune-ok: channel_max/short frame_max/long heartbeat/short
    40 open: virtual_host/str -/str -/bit
    41 open-ok: -/str
    50 close: reply_code/short reply_text/str class_id/short method_id/short
    51 close-ok:
    60 blocked: reason/str
    61 unblocked:
    70 update-secret: new_secret/bytes reason/str
    71 update-secret-ok:
20 channel
    10 open: -/str
    11 open-ok: -/bytes
    20 flow: active/bit
    21 flow-ok: active/bit
    40 close: reply_code/short reply_text/str class_id/short method_id/short
    41 close-ok:
30 access
    10 request: realm/str exclusive/bit passive/bit active/bit write/bit read/bit
    11 request-ok: ticket/short
40 exchange
    10 declare: -/short exchange/str type/str passive/bit durable/bit auto_delete/bit internal/bit no_wait/bit arguments/table
    11 declare-ok:
    20 delete: -/short exchange/str if_unused/bit no_wait/bit
    21 delete-ok:
    30 bind: -/short destination/str source/str routing_key/str no_wait/bit arguments/table
    31 bind-ok:
    40 unbind: -/short destination/str source/str routing_key/str no_wait/bit arguments/table
    51 unbind-ok:
50 queue
    10 declare: -/short queue/str passive/bit durable/bit exclusive/bit auto_delete/bit no_wait/bit arguments/table
    11 declare-ok: queue/str message_count/long consumer_count/long
    20 bind: -/short queue/str exchange/str routing_key/str no_wait/bit arguments/table
    21 bind-ok:
    30 purge: -/short queue/str no_wait/bit
    31 purge-ok: message_count/long
    40 delete: -/short queue/str if_unused/bit if_empty/bit no_wait/bit
    41 delete-ok: message_count/long
    50 unbind: -/short queue/str exchange/str routing_key/str arguments/table
    51 unbind-ok:
60 basic
    10 qos: prefetch_size/long prefetch_count/short global_/bit
    11 qos-ok:
    20 consume: -/short queue/str consumer_tag/str no_local/bit no_ack/bit exclusive/bit no_wait/bit arguments/table
    21 consume-ok: consumer_tag/str
    30 cancel: consumer_tag/str no_wait/bit
    31 cancel-ok: consumer_tag/str
    40 publish: -/short exchange/str routing_key/str mandatory/bit immediate/bit
    50 return: reply_code/short reply_text/str exchange/str routing_key/str
    60 deliver: consumer_tag/str delivery_tag/longlong redelivered/bit exchange/str routing_key/str
    70 get: -/short queue/str no_ack/bit
    71 get-ok: delivery_tag/longlong redelivered/bit exchange/str routing_key/str message_count/long
    72 get-empty: -/str
    80 ack: delivery_tag/longlong multiple/bit
    90 reject: delivery_tag/longlong requeue/bit
    100 recover-async: requeue/bit
    110 recover: requeue/bit
    111 recover-ok:
    120 nack: delivery_tag/longlong multiple/bit requeue/bit
85 confirm
    10 select: no_wait/bit
    11 select-ok:
90 tx
    10 select:
    11 select-ok:
    20 commit:
    21 commit-ok:
    30 rollback:
    31 rollback-ok:
19286 log
    10 attach: queue/str group/str
    11 attach-ok: incarnation/str first/longlong next/longlong settled/longlong
    20 read: queue/str consumer_tag/str start/longlong end/longlong
    21 read-ok: consumer_tag/str next/longlong count/longlong
    30 settle: queue/str group/str incarnation/str end/longlong
    31 settle-ok: settled/longlong
    40 detach: queue/str group/str
    41 detach-ok:
    50 inspect: queue/str
    51 inspect-ok: incarnation/str first/longlong next/longlong settled/longlong
    60 hold: queue/str group/str incarnation/str start/longlong end/longlong
    61 hold-ok: first/longlong end/longlong count/longlong
    70 count: queue/str incarnation/str start/longlong end/longlong
    71 count-ok: first/longlong end/longlong count/longlong
19287 stage
    10 open: writer/str batch/longlong task/str
    11 open-ok: last/longlong
    20 commit: writer/str batch/longlong tasks/bytes
    21 commit-ok: fresh/bit
    30 last: writer/str
    31 last-ok: last/longlong
    40 forget: writer/str
    41 forget-ok:
    50 claim: writer/str task/str
    51 claim-ok: last/longlong
"""
