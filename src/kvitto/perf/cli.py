"""The arguments of `kvitto perf`. The command line calls `add_parser`; handlers take the parsed arguments."""

import argparse

from kvitto.client.uri import DEFAULT_URI, parse_uri
from kvitto.perf import confirms, rpc, throughput
from kvitto.perf.options import Options


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `perf` with its commands. Each sets `run`, a function of the arguments that returns the exit code."""
    perf = subparsers.add_parser("perf", help="measure a broker", description="Measure any AMQP 0-9-1 broker.")
    # known here only to be refused: else its value is taken for the command
    perf.add_argument("--uri", action=BeforeCommand, help=argparse.SUPPRESS, dest=argparse.SUPPRESS)
    commands = perf.add_subparsers(dest="perf_command", required=True, metavar="COMMAND")
    add_throughput(commands)
    add_rpc(commands)
    add_confirms(commands)


class BeforeCommand(argparse.Action):
    """An option that is given before the command that has it."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        parser.error(
            "a command comes before --uri: throughput, rpc or confirms, as in `kvitto perf throughput --uri ...`"
        )


def add_throughput(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "throughput",
        help="messages per second, and latency (on Linux)",
        description="Publish and consume at full speed, or as the options say. The flags are those of lavinmqperf. Ends after -z "
        "seconds, or when -C/-D messages are done, or with Ctrl-C. A queue that this run made is deleted at the end if "
        "the run had both publishers and consumers.",
    )
    flag = parser.add_argument
    flag("-x", "--publishers", type=natural, default=1, metavar="N", help="publishers (1)")
    flag("-y", "--consumers", type=natural, default=1, metavar="N", help="consumers (1)")
    flag("-s", "--size", type=natural, default=16, metavar="BYTES", help="bytes of each body (16)")
    flag("-c", "--confirm", type=natural, default=0, metavar="N", help="use confirms, with at most N unconfirmed (off)")
    flag("-a", "--ack", type=natural, default=0, metavar="N", help="ack after every N messages (no ack)")
    flag("-t", "--transaction", type=natural, default=0, metavar="N", help="publish in transactions of N")
    flag("-T", "--ack-transaction", type=natural, default=0, metavar="N", help="ack in transactions of N")
    flag("-u", "--queue", default="perf-test", metavar="NAME", help="queue (perf-test)")
    flag("-e", "--exchange", default="", metavar="NAME", help="exchange to publish to (the default exchange)")
    flag("-k", "--routing-key", default="", metavar="KEY", help="routing key (the queue's name)")
    flag("-P", "--prefetch", type=natural, default=0, metavar="N", help="prefetch of each consumer (no limit)")
    flag("-p", "--persistent", action="store_true", help="delivery mode 2")
    flag("-z", "--time", type=float, default=0.0, metavar="S", help="stop after S seconds")
    flag("-C", "--pmessages", type=natural, default=0, metavar="N", help="publish N messages in all")
    flag("-D", "--cmessages", type=natural, default=0, metavar="N", help="consume N messages in all (as -C)")
    flag("-r", "--rate", type=float, default=0.0, metavar="N", help="messages per second and publisher (no limit)")
    flag("-l", "--latency", action="store_true", help="measure the time from publisher to consumer")
    flag("-q", "--quiet", action="store_true", help="only the summary")
    flag("--pid", type=natural, default=0, metavar="N", help="report the CPU time of this process, too: the broker's")
    add_common(parser)
    parser.set_defaults(run=run_throughput)


def add_rpc(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "rpc",
        help="remote calls per second, and how long each takes (on Linux)",
        description="Clients send requests to a queue, each waiting for the answer to its last one, which comes by direct "
        "reply-to. Servers send the body back. Ends after -z seconds, or after -C calls, or with Ctrl-C. The queue is "
        "deleted at the end.",
    )
    flag = parser.add_argument
    flag("-x", "--clients", type=natural, default=1, metavar="N", help="clients (1)")
    flag("-y", "--servers", type=natural, default=1, metavar="N", help="servers (1)")
    flag("-s", "--size", type=natural, default=16, metavar="BYTES", help="bytes of each body (16)")
    flag("-a", "--ack", action="store_true", help="servers ack each request (no ack)")
    flag("-P", "--prefetch", type=natural, default=0, metavar="N", help="prefetch of each server (no limit)")
    flag("-u", "--queue", default="perf-rpc", metavar="NAME", help="queue of the requests (perf-rpc)")
    flag("-z", "--time", type=float, default=0.0, metavar="S", help="stop after S seconds")
    flag("-C", "--calls", type=natural, default=0, metavar="N", help="make N calls in all")
    flag("-q", "--quiet", action="store_true", help="only the summary")
    flag("--pid", type=natural, default=0, metavar="N", help="report the CPU time of this process, too: the broker's")
    add_common(parser)
    parser.set_defaults(run=run_rpc)


def add_confirms(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "confirms",
        help="what a receipt costs: transactions, single and streamed confirms",
        description="Publish the same persistent messages in one transaction each, waiting for each confirm, and with "
        "streamed confirms; print times and ratios. Transactions may take minutes.",
    )
    parser.add_argument("-C", "--count", type=natural, default=10_000, metavar="N", help="messages (10000)")
    parser.add_argument("-s", "--size", type=natural, default=16, metavar="BYTES", help="bytes of each body (16)")
    parser.add_argument("--only", choices=confirms.WAYS, action="append", help="measure only this; may be repeated")
    add_common(parser)
    parser.set_defaults(run=run_confirms)


def add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--uri", type=uri, default=DEFAULT_URI, help=f"the broker ({DEFAULT_URI.replace('%', '%%')})")
    parser.add_argument("-j", "--json", action="store_true", help="print one JSON object instead of text")


def uri(text: str) -> str:
    """The value of an argument that is an AMQP URI."""
    try:
        parse_uri(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def natural(text: str) -> int:
    """The value of an argument that is a number from 0 on."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is less than 0")
    return value


def run_throughput(args: argparse.Namespace) -> int:
    options = Options(
        uri=args.uri,
        publishers=args.publishers,
        consumers=args.consumers,
        size=args.size,
        max_unconfirmed=args.confirm,
        ack_every=args.ack,
        publish_tx=args.transaction,
        ack_tx=args.ack_transaction,
        queue=args.queue,
        exchange=args.exchange,
        routing_key=args.routing_key,
        prefetch=args.prefetch,
        persistent=args.persistent,
        seconds=args.time,
        publish_count=args.pmessages,
        consume_count=args.cmessages,
        rate=args.rate,
        latency=args.latency,
        broker_pid=args.pid,
    )
    return throughput.run(options, as_json=args.json, quiet=args.quiet)


def run_rpc(args: argparse.Namespace) -> int:
    options = Options(
        uri=args.uri,
        publishers=args.clients,
        consumers=args.servers,
        size=args.size,
        ack_every=int(args.ack),
        prefetch=args.prefetch,
        queue=args.queue,
        seconds=args.time,
        publish_count=args.calls,
        broker_pid=args.pid,
    )
    return rpc.run(options, as_json=args.json, quiet=args.quiet)


def run_confirms(args: argparse.Namespace) -> int:
    return confirms.run(args.uri, args.count, args.size, args.only or list(confirms.WAYS), as_json=args.json)
