"""Parameters: values by component, virtual host and name, and global ones by name alone, as RabbitMQ's plugins keep their settings.

A component gives its parameters a meaning: it checks a value before it is taken, and is told when one is set or cleared, also of all
stored ones at the start. Whoever implements a component registers it (`register`) before `Broker.start`. Values are what JSON can
express; they are definitions, so they are durable before the answer.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvitto.broker.administration.equivalence import describe

if TYPE_CHECKING:
    from kvitto.broker.broker import Broker

PARAMETER, GLOBAL_PARAMETER = "parameter", "global_parameter"
"""The kinds of these objects in the definitions."""
VHOST_LIMITS, LIMITS = "vhost-limits", "limits"
"""The component that holds the limits of a virtual host, and the one name that it has."""
MAX_CONNECTIONS, MAX_QUEUES, MAX_CHANNELS = "max-connections", "max-queues", "max-channels"
OF_VHOSTS = (MAX_CONNECTIONS, MAX_QUEUES)
OF_USERS = (MAX_CONNECTIONS, MAX_CHANNELS)
KEPT = ("federation-upstream", "federation-upstream-set", "shovel", "mqtt-default-vhosts", "mqtt-port-to-vhost-mapping")
"""Components of RabbitMQ whose parameters are kept and have no effect, unless somebody registers them."""
LIMIT_MAX = (1 << 31) - 1


class InvalidParameter(ValueError):
    """A parameter cannot be taken. The text says why."""


def nothing(_vhost: str, _name: str, _value: Any) -> None:
    """A component that does not care."""


def cleared(_vhost: str, _name: str) -> None:
    """A component that does not care."""


@dataclass(frozen=True, slots=True)
class Component:
    """`check` raises InvalidParameter. `set` and `clear` come after the change; they must not fail, and take no longer than a turn has."""

    check: Callable[[str, str, Any], None] = nothing
    set: Callable[[str, str, Any], None] = nothing
    clear: Callable[[str, str], None] = cleared


def check_limits(value: Any, names: tuple[str, ...]) -> dict[str, int]:
    """Return limits: a whole number by name, where one below 0 stands for none. Raises InvalidParameter."""
    if not isinstance(value, Mapping):
        raise InvalidParameter("limits must be an object")
    for name, most in value.items():
        if name not in names:
            raise InvalidParameter(f"there is no limit {name!r}{nearest(name, names)}")
        if isinstance(most, bool) or not isinstance(most, int) or abs(most) > LIMIT_MAX:
            raise InvalidParameter(f"{name} must be a whole number, not {most!r}")
    return dict(value)


def nearest(name: str, known: tuple[str, ...]) -> str:
    """Return the end of a message about an unknown name."""
    alike = difflib.get_close_matches(name, known, 1)
    return f"; is it {alike[0]!r}? There are {', '.join(known)}" if alike else f"; there are {', '.join(known)}"


def _check_vhost_limits(_vhost: str, name: str, value: Any) -> None:
    if name != LIMITS:
        raise InvalidParameter(f"component {VHOST_LIMITS} has one parameter, {LIMITS!r}")
    check_limits(value, OF_VHOSTS)


Key = tuple[str, str, str]
"""Virtual host, component, name."""


class Parameters:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._values: dict[str, dict[tuple[str, str], Any]] = {}
        self.globals: dict[str, Any] = {}
        self.components: dict[str, Component] = {VHOST_LIMITS: Component(_check_vhost_limits)}

    def register(self, name: str, component: Component) -> None:
        """Give the parameters of a component their meaning. Those that are stored already are set now."""
        self.components[name] = component
        for vhost, (component_name, key), value in list(self.list()):
            if component_name == name:
                component.set(vhost, key, value)

    # -- of virtual hosts ----------------------------------------------------------------------------------------

    def list(self, vhost: str | None = None) -> Iterator[tuple[str, tuple[str, str], Any]]:
        """Yield (virtual host, (component, name), value), sorted within a virtual host."""
        for where in self._values if vhost is None else (vhost,):
            for key, value in sorted(self._values.get(where, {}).items(), key=lambda item: item[0]):
                yield where, key, value

    def get(self, vhost: str, component: str, name: str, default: Any = None) -> Any:
        return self._values.get(vhost, {}).get((component, name), default)

    def check(self, vhost: str, component: str, name: str, value: Any) -> None:
        """Raises InvalidParameter unless the component takes this value."""
        found = self.components.get(component)
        if found is not None:
            found.check(vhost, name, value)
        elif component not in KEPT:
            known = tuple(sorted({*self.components, *KEPT}))
            raise InvalidParameter(f"component {component!r} not found{nearest(component, known)}")
        if value is None:
            raise InvalidParameter("value is missing")

    def set(self, vhost: str, component: str, name: str, value: Any) -> None:
        """Set a value that `check` has accepted."""
        of_vhost = self._values.setdefault(vhost, {})
        if (component, name) in of_vhost and is_same(of_vhost[component, name], value):
            return
        of_vhost[component, name] = value
        self._broker.define(PARAMETER, (vhost, component, name), {"value": value})
        if component in self.components:
            self.components[component].set(vhost, name, value)
        else:
            self._broker.notices.without_effect(describe("parameter", name, vhost), (component,))

    def clear(self, vhost: str, component: str, name: str) -> bool:
        """Delete a value. Returns False if there is none."""
        of_vhost = self._values.get(vhost, {})
        if (component, name) not in of_vhost:
            return False
        del of_vhost[component, name]
        self._broker.undefine(PARAMETER, (vhost, component, name))
        if component in self.components:
            self.components[component].clear(vhost, name)
        return True

    def forget_vhost(self, vhost: str) -> None:
        """Delete everything of a virtual host that is deleted."""
        for component, name in list(self._values.get(vhost, {})):
            self.clear(vhost, component, name)
        self._values.pop(vhost, None)

    def restore(self, key: Key, value: Mapping[str, Any]) -> None:
        """Take a stored parameter at the start."""
        vhost, component, name = key
        self._values.setdefault(vhost, {})[component, name] = value["value"]
        if component in self.components:
            self.components[component].set(vhost, name, value["value"])

    # -- limits of virtual hosts ---------------------------------------------------------------------------------

    def limits_of(self, vhost: str) -> dict[str, int]:
        """Return the limits of a virtual host, by name."""
        found: dict[str, int] = self.get(vhost, VHOST_LIMITS, LIMITS, {})
        return found

    def limit(self, vhost: str, name: str) -> int | None:
        """Return a limit of a virtual host, None if it has none."""
        return bounded(self.limits_of(vhost), name)

    def set_limit(self, vhost: str, name: str, most: int | None) -> bool:
        """Set or clear (None) one limit. Returns False if there was none to clear."""
        before = self.limits_of(vhost)
        after = {key: value for key, value in before.items() if key != name} | ({} if most is None else {name: most})
        if after:
            self.set(vhost, VHOST_LIMITS, LIMITS, after)
        else:
            self.clear(vhost, VHOST_LIMITS, LIMITS)
        return most is not None or name in before

    # -- global --------------------------------------------------------------------------------------------------

    def set_global(self, name: str, value: Any) -> None:
        if name in self.globals and is_same(self.globals[name], value):
            return
        self.globals[name] = value
        self._broker.define(GLOBAL_PARAMETER, (name,), {"value": value})

    def clear_global(self, name: str) -> bool:
        if name not in self.globals:
            return False
        del self.globals[name]
        self._broker.undefine(GLOBAL_PARAMETER, (name,))
        return True

    def restore_global(self, name: str, value: Mapping[str, Any]) -> None:
        self.globals[name] = value["value"]


def is_same(one: Any, other: Any) -> bool:
    """Whether two values are the same in JSON, where true is not 1, and 1.0 is not 1."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def bounded(limits: Mapping[str, int], name: str) -> int | None:
    """Return a limit, None if there is none: it is not set, or below 0."""
    most = limits.get(name, -1)
    return most if most >= 0 else None
