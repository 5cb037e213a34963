"""The delivery counts of a queue are those of one dict."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvitto.broker.queues.deliveries import PAGE_BITS, Deliveries

PAGE = 1 << PAGE_BITS
offsets = st.one_of(st.integers(0, 3 * PAGE), st.sampled_from([PAGE - 1, PAGE, 2 * PAGE, 1 << 40]))
steps = st.one_of(
    st.tuples(st.just("note"), offsets, st.integers(1, 9)),
    st.tuples(st.just("forget"), offsets, st.sampled_from([1, 2, 50, PAGE, 3 * PAGE, 1 << 40])),
)


@given(st.lists(steps, max_size=40))
def test_deliveries_are_known_until_they_are_forgotten(told: list[tuple[str, int, int]]) -> None:
    deliveries, model = Deliveries(), dict[int, int]()
    for what, offset, number in told:
        if what == "note":
            deliveries.note(offset, number)
            model[offset] = number
        else:
            deliveries.forget(offset, offset + number)
            model = {o: n for o, n in model.items() if not offset <= o < offset + number}
        assert {o: n for page in deliveries.pages.values() for o, n in page.items()} == model
        assert all(deliveries.pages.values())
        assert deliveries.of(offset, -1) == model.get(offset, -1)
    assert Deliveries(model.items()).pages == deliveries.pages
