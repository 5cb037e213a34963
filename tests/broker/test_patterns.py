"""What users write as regular expressions: RabbitMQ's dialect as far as it can be searched in linear time, the rest refused in words."""

from __future__ import annotations

import pathlib
import re
import time
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvitto
from kvitto.broker.administration import auth, policies
from kvitto.broker.routing.patterns import PATTERN_MAX, InvalidPattern, compile_pattern, stored_pattern
from tests.http.api import Http

NAMES = st.text(alphabet="ab.-|()[]\\", max_size=12)


@pytest.mark.parametrize(
    ("pattern", "found", "missed"),
    [
        ("", ["", "a"], []),
        (".*", ["", "a"], []),
        ("^$", [""], ["a"]),
        (r"^orders\.\d+$", ["orders.7"], ["orders.x", "my.orders.7"]),
        ("(?i)^ORDERS", ["Orders"], ["order"]),
        ("^(a|b){2,3}$", ["ab", "bab"], ["a", "abab"]),
        ("[[:alpha:]]", ["a"], ["7"]),
        (r"\Qa.b\E\z", ["xa.b"], ["a-b"]),
        ("^(?<kind>ev|cmd)-", ["ev-1"], ["e-1"]),
        ("^ü+$", ["ü"], ["u"]),
        (r"^(?!amq\.).*", ["orders", "amqp"], ["amq.topic"]),
        (r"^(?!amq\.|tmp)(?=.*-eu$)orders", ["orders-eu"], ["orders-us", "tmp-orders-eu", "amq.orders-eu"]),
        (r"^(?![)(\]]|\Q)(\E)a", ["ab"], [")a", "(a", "]a"]),
        ("^(?=a)(b|a)", ["a"], ["b"]),
    ],
)
def test_what_rabbitmqs_users_write_is_found(pattern: str, found: list[str], missed: list[str]) -> None:
    compiled = compile_pattern(pattern)
    assert [name for name in (*found, *missed) if compiled.found_in(name)] == found


def test_a_name_that_is_not_utf_8_is_searched_as_bytes() -> None:
    assert compile_pattern(r"^a.\xffb$").found_in("a\udcc3\udcffb")


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("a(?!b)", "a lookahead is possible only at the start"),
        ("^((?!a).)*$", "a lookahead is possible only at the start"),
        ("^(?!a)b|c", "put what follows the lookahead into parentheses"),
        ("^(?!a)*", "put what follows the lookahead into parentheses"),
        ("^(?!a", r"a \) is missing"),
        ("(?<!a)b", "lookbehinds are not possible"),
        (r"(a)\1", "backreferences are not possible"),
        ("(", r"missing \)"),
        ("a++", "bad repetition operator"),
        ("a{1001}", "invalid repetition size"),
        (r"[\pL]", "without the properties"),
        ("(a{900}){900}", "invalid repetition size"),
        ("\ud800", "not UTF-8"),
        ("a" * (PATTERN_MAX + 1), "at most 8192 bytes"),
    ],
)
def test_what_cannot_be_searched_in_linear_time_is_refused_in_words(pattern: str, why: str) -> None:
    with pytest.raises(InvalidPattern, match=why):
        compile_pattern(pattern)
    refused = stored_pattern(pattern)
    assert re.search(why, refused.refused) and refused.text == pattern
    assert not refused.found_in(pattern) and not refused.found_in("")


@given(ahead=NAMES, rest=NAMES, name=NAMES)
def test_a_lookahead_at_the_start_means_what_it_means_to_a_backtracking_engine(
    ahead: str, rest: str, name: str
) -> None:
    for wanted in "!=":
        text = f"^(?{wanted}{ahead}){rest}"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # a later Python may read some sets as nested
                compiled, expected = compile_pattern(text), re.compile(text)
        except (InvalidPattern, re.error):
            continue
        assert compiled.found_in(name) == (expected.search(name) is not None)


@pytest.mark.parametrize("pattern", [r"^(\w+\.?)*$", "(a|aa)+$", "(x+x+)+y", "^(a?){30}a{30}$", "(.*a){20}"])
def test_a_search_does_not_double_per_letter(pattern: str) -> None:
    """With backtracking each of these takes years for a name of 200 letters."""
    for letters in ("a" * 200 + "!", "x" * 200):
        compile_pattern(pattern).found_in(letters)


@pytest.mark.parametrize(
    "pattern", ["(a?){1000}a{1000}", "(.{1,100}){5}c", "(.{0,30}a){30}", "[a-z]?" * 1300, "(?i)" + "[^k]" * 2000]
)
def test_the_worst_expressions_take_milliseconds(pattern: str) -> None:
    """100 ms is ten to twenty times what they take, and no measure of a loaded machine: it is CPU time."""
    before_s = time.process_time()
    compiled = compile_pattern(pattern)
    for letters in ("a" * 255, "ab" * 127):
        compiled.found_in(letters)
    assert time.process_time() - before_s < 0.1


OLD = r"^((?!secret).)*$"
"""What an older version took."""


def test_stored_patterns_that_cannot_be_searched_for_any_more_have_no_effect_and_raise_an_alarm(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    permission = {"configure": OLD, "write": "", "read": ".*"}
    with monkeypatch.context() as older, kvitto.Broker(tmp_path, http_port=0) as broker:
        older.setattr(policies, "compile_pattern", stored_pattern)
        older.setattr(auth, "compile_pattern", stored_pattern)
        api = Http(broker.http_url)
        api.put("/api/queues/%2F/orders", {"durable": True})
        assert api.put("/api/policies/%2F/old", {"pattern": OLD, "definition": {"max-length": 7}}) == 201
        api.put("/api/users/ada", {"password": "secret", "tags": "management"})
        assert api.put("/api/permissions/%2F/ada", permission) == 201
    with kvitto.Broker(tmp_path, http_port=0) as broker:
        api = Http(broker.http_url)
        alarms = [found["alarm"] for found in api.call("GET", "/api/health/checks/alarms").json["alarms"]]
        assert [text.partition(" has no effect")[0] for text in sorted(alarms)] == [
            "a permission of user 'ada' in vhost '/'",
            "policy 'old' of vhost '/'",
        ]
        assert all("a lookahead is possible only at the start" in text for text in alarms)
        assert api.get("/api/queues/%2F/orders")["policy"] is None
        assert api.get("/api/policies/%2F/old")["pattern"] == OLD
        assert api.get("/api/permissions/%2F/ada") == {"user": "ada", "vhost": "/", **permission}
        ada = api.as_user("ada")
        assert ada.call("PUT", "/api/queues/%2F/theirs", {}).status == 401
        assert ada.post("/api/queues/%2F/orders/get", {}).status == 200
        assert api.put("/api/policies/%2F/old", {"pattern": "^orders", "definition": {"max-length": 7}}) == 204
        assert api.delete("/api/permissions/%2F/ada") == 204
        assert api.get("/api/health/checks/alarms") == {"status": "ok"}
        assert api.get("/api/queues/%2F/orders")["policy"] == "old"
