"""The commands of `kvitto ctl` for users, permissions, virtual hosts and policies."""

from __future__ import annotations

import argparse
import getpass
import json
import sys
from collections.abc import Callable

from kvitto.cli.management import NOT_ALLOWED, REFUSED, USAGE, Failure, Management

APPLY_TO = ("all", "queues", "classic_queues", "quorum_queues", "streams", "exchanges")
TAGS = "administrator, monitoring, management, policymaker"


def add_commands(add: Callable[..., argparse.ArgumentParser]) -> None:
    for name, command, text in (
        ("add_user", add_user, "add a user; asks for the password"),
        ("change_password", change_password, "give a user another password; asks for it"),
        ("authenticate_user", authenticate_user, "check a user's password; asks for it"),
    ):
        sub = add(name, command, text, "user")
        ask(sub)
        if name != "authenticate_user":
            sub.add_argument("--no-password", action="store_true", help="the user logs in by a client certificate")
        if name == "add_user":
            sub.add_argument("--tags", default="", help=f"with commas: {TAGS}")
    ask(add("hash_password", hash_password, "print the hash of a password, for definitions; asks for it"))
    add("delete_user", delete_user, "delete a user", "user")
    sub = add("set_user_tags", set_user_tags, f"replace a user's tags: {TAGS}", "user")
    sub.add_argument("tags", nargs="*", metavar="TAG")
    text = "set a user's permissions in a virtual host, as regular expressions of names"
    add("set_permissions", set_permissions, text, "user", "configure", "write", "read", vhost=True)
    add("clear_permissions", clear_permissions, "remove a user's permissions in a virtual host", "user", vhost=True)
    add("add_vhost", add_vhost, "add a virtual host", "vhost")
    add("delete_vhost", delete_vhost, "delete a virtual host with everything in it", "vhost")
    add_policies(add)


def ask(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--password-stdin", action="store_true", help="read it from the first line of stdin")


def add_policies(add: Callable[..., argparse.ArgumentParser]) -> None:
    for sort, path, text in (
        ("policy", "policies", "settings for all queues and exchanges whose names match PATTERN"),
        (
            "operator_policy",
            "operator-policies",
            "limits for all queues whose names match PATTERN, which no argument or policy can exceed",
        ),
    ):
        sub = add(f"set_{sort}", set_policy, text, "name", "pattern", "definition", vhost=True)
        sub.epilog = """DEFINITION is JSON: '{"max-length": 1000}'. A policy of that name is replaced."""
        sub.add_argument(
            "--priority",
            type=int,
            default=0,
            help="of the policies that match, the one with the highest priority applies (default: 0)",
        )
        sub.add_argument("--apply-to", default="all", choices=APPLY_TO, help="(default: all)")
        sub.set_defaults(path=path)
        sub = add(f"clear_{sort}", clear_policy, f"delete the {sort.replace('_', ' ')} NAME", "name", vhost=True)
        sub.set_defaults(path=path)


def secret(args: argparse.Namespace) -> dict[str, str]:
    """Return the part of a request that sets a user's password."""
    return {"password_hash": ""} if args.no_password else {"password": password(args, "again: ")}


def password(args: argparse.Namespace, again: str = "") -> str:
    """Return the password that somebody types, or the first line of stdin. With `again` a new one, which is typed twice."""
    if args.password_stdin:
        given = sys.stdin.readline().rstrip("\r\n")
    elif sys.stdin.isatty():
        user = getattr(args, "user", None)
        given = getpass.getpass(f"password of {user}: " if user else "password: ")
        if again and getpass.getpass(again) != given:
            raise Failure(USAGE, "the two passwords differ")
    else:
        raise Failure(USAGE, "there is no terminal to ask for the password: give --password-stdin")
    if not given:
        raise Failure(USAGE, "the password is empty")
    return given


def add_user(api: Management, args: argparse.Namespace) -> str:
    if any(user["name"] == args.user for user in api.get("users")):
        raise Failure(REFUSED, f"user '{args.user}' exists already")
    api.put("users", args.user, body={**secret(args), "tags": args.tags})
    return f"user '{args.user}' is added; `kvitto ctl set_permissions` gives access to virtual hosts"


def change_password(api: Management, args: argparse.Namespace) -> str:
    api.get("users", args.user)
    api.put("users", args.user, body=secret(args))
    return f"user '{args.user}' has {'no' if args.no_password else 'another'} password"


def authenticate_user(api: Management, args: argparse.Namespace) -> str:
    """The broker answers whether the password is right before it says what the user may do: see `whoami`."""
    api.user, api.password = args.user, password(args)
    try:
        api.get("whoami")
    except Failure as failure:
        # a right password of a user without tags, whom the management API does not let in, is a right password
        if failure.code != NOT_ALLOWED or "has none of the tags" not in str(failure):
            raise
    return f"the password of user '{args.user}' is right"


def hash_password(_api: Management, args: argparse.Namespace) -> str:
    from kvitto.broker.administration import auth  # the only command that needs the broker's code

    return auth.hash_password(password(args, "again: "))


def set_user_tags(api: Management, args: argparse.Namespace) -> str:
    api.get("users", args.user)
    api.put("users", args.user, body={"tags": args.tags})
    return f"user '{args.user}' has the tags: {', '.join(args.tags) or 'none'}"


def delete_user(api: Management, args: argparse.Namespace) -> str:
    api.delete("users", args.user)
    return f"user '{args.user}' is deleted"


def set_permissions(api: Management, args: argparse.Namespace) -> str:
    body = {"configure": args.configure, "write": args.write, "read": args.read}
    api.put("permissions", args.vhost, args.user, body=body)
    return f"user '{args.user}' has permissions in vhost '{args.vhost}'"


def clear_permissions(api: Management, args: argparse.Namespace) -> str:
    api.delete("permissions", args.vhost, args.user)
    return f"vhost '{args.vhost}' is not open to user '{args.user}'"


def set_policy(api: Management, args: argparse.Namespace) -> str:
    try:
        definition = json.loads(args.definition)
    except ValueError as error:
        raise Failure(USAGE, f"the definition is not JSON: {error}") from None
    body = {"pattern": args.pattern, "definition": definition, "priority": args.priority, "apply-to": args.apply_to}
    api.put(args.path, args.vhost, args.name, body=body)
    return f"policy '{args.name}' is set in vhost '{args.vhost}'"


def clear_policy(api: Management, args: argparse.Namespace) -> str:
    api.delete(args.path, args.vhost, args.name)
    return f"policy '{args.name}' is deleted in vhost '{args.vhost}'"


def add_vhost(api: Management, args: argparse.Namespace) -> str:
    api.put("vhosts", args.vhost)
    return f"vhost '{args.vhost}' is added; `kvitto ctl set_permissions -p` gives users access to it"


def delete_vhost(api: Management, args: argparse.Namespace) -> str:
    api.delete("vhosts", args.vhost)
    return f"vhost '{args.vhost}' is deleted"
