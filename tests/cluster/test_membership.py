"""The wait set of a leader: whoever the register may ever name is in it (R2), whatever becomes of requests and answers."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvitto.cluster.membership import Membership
from kvitto.cluster.register import Document, Seen

ME = "A"
OTHERS = ["B", "C", "D"]
SOME = st.sets(st.sampled_from(OTHERS))


class Requests(RuleBasedStateMachine):
    """One leader, and a register to which requests come late or never."""

    def __init__(self) -> None:
        super().__init__()
        self.document = Document("c", 1, ME, (ME, "B", "C"), 2)
        self.version = 1
        self.membership = Membership(ME, self.document, 1)
        self.travelling: list[tuple[Document, int]] = []
        """Requests that may still be granted."""
        self.waiting: tuple[Document, int] | None = None
        """The request whose answer the leader waits for."""
        self.answer: int | None = None

    def seen(self) -> Seen:
        return Seen("r", self.document, self.version, None)

    def grant(self, request: tuple[Document, int]) -> int | None:
        document, version = request
        if version != self.version:
            return None
        self.document, self.version = document, self.version + 1
        return self.version

    @precondition(lambda self: self.waiting is None)
    @rule(synced=SOME, lost=SOME, cut=SOME, connected=SOME)
    def ask(self, synced: set[str], lost: set[str], cut: set[str], connected: set[str]) -> None:
        document = self.membership.propose(synced - cut, lost, cut, connected)
        if document is not None:
            assert ME in document.members
            assert set(document.members) >= synced - cut - lost
            self.waiting = document, self.membership.version

    @precondition(lambda self: self.waiting is not None)
    @rule()
    def granted_and_heard(self) -> None:
        assert self.waiting is not None
        version = self.grant(self.waiting)
        self.waiting = None
        if version is not None:
            self.membership.changed(version)
        else:
            self.membership.not_changed(self.seen())

    @precondition(lambda self: self.waiting is not None)
    @rule(arrives=st.booleans())
    def not_heard(self, arrives: bool) -> None:
        """The answer is lost, or the request comes later, or never."""
        assert self.waiting is not None
        if arrives:
            self.grant(self.waiting)
        else:
            self.travelling.append(self.waiting)
        self.waiting = None
        self.membership.not_changed(None)

    @precondition(lambda self: self.travelling)
    @rule(data=st.data())
    def comes_late(self, data: st.DataObject) -> None:
        self.grant(self.travelling.pop(data.draw(st.integers(0, len(self.travelling) - 1))))

    @invariant()
    def waits_for_whoever_may_be_elected(self) -> None:
        waits = self.membership.waits | {ME}
        assert set(self.document.members) <= waits
        for document, version in [*self.travelling, *filter(None, [self.waiting])]:
            if version == self.version:
                assert set(document.members) <= waits
        for member in OTHERS:
            if self.membership.may_be_cut(member):
                assert member not in self.document.members

    @invariant()
    def leads_on(self) -> None:
        assert not self.membership.why_over


TestRequests = Requests.TestCase
TestRequests.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)


def leading(members: tuple[str, ...] = (ME, "B", "C"), minimum: int = 2) -> Membership:
    return Membership(ME, Document("c", 3, ME, members, minimum), 7)


def test_a_confirm_needs_all_members_and_the_minimum() -> None:
    membership = leading()
    assert membership.reached({"B": 5, "C": 4, "D": 1}, 9) == 4
    assert membership.reached({"B": 5}, 9) is None
    alone = leading((ME,), 1)
    assert alone.alone and alone.reached({}, 9) == 9
    assert leading((ME,), 2).reached({"B": 5}, 9) is None


def test_the_lost_stay_members_if_there_would_be_too_few() -> None:
    membership = leading()
    assert membership.propose([], ["B", "C"]) is None
    document = membership.propose([], ["B"])
    assert document is not None and document.members == (ME, "C")
    membership.changed(8)
    assert membership.waits == {"C"}
    cut = membership.propose([], [], ["C"])
    assert cut is not None and cut.members == (ME,)


def test_members_are_cut_one_after_another_as_long_as_they_may_be_needed_to_lead() -> None:
    """After a power cut of all nodes: two of three directories are whole at any moment."""
    membership = leading()
    first = membership.propose([], [], ["B", "C"], ["B", "C"])
    assert first is not None and first.members == (ME, "C")
    membership.changed(8)
    assert membership.propose([], [], ["C"], ["B", "C"]) is None, "B is being changed, and C could lead"
    assert membership.propose(["B"], [], ["C"], ["B", "C"]) is not None
    membership.changed(9)
    assert membership.document.members == (ME, "B")
    assert membership.propose(["B", "C"], [], [], ["B", "C"]) is not None


def test_the_next_member_is_cut_if_the_first_one_is_gone_or_there_is_no_other() -> None:
    membership = leading()
    membership.propose([], [], ["B", "C"], ["B", "C"])
    membership.changed(8)
    second = membership.propose([], ["B"], ["C"], ["C"])
    assert second is not None and second.members == (ME,)
    two = leading((ME, "B"))
    cut = two.propose([], [], ["B"], ["B"])
    assert cut is not None and cut.members == (ME,)
    alone = leading((ME, "B", "C"), 1)
    cut = alone.propose([], [], ["B", "C"], ["B", "C"])
    assert cut is not None and cut.members == (ME,), "this one confirms alone meanwhile"


def test_a_request_to_cut_that_was_lost_is_made_again() -> None:
    membership = leading()
    membership.propose([], [], ["B"], ["B"])
    membership.not_changed(None)
    again = membership.propose([], [], ["B"], ["B"])
    assert again is not None and again.members == (ME, "C")


def test_a_node_is_waited_for_before_it_is_added() -> None:
    membership = leading((ME, "B"))
    assert membership.propose(["B", "C"], []) is not None
    assert membership.waits == {"B", "C"}
    membership.not_changed(None)
    assert membership.waits == {"B", "C"} and not membership.may_be_cut("C")


def test_another_leader_ends_it() -> None:
    membership = leading()
    membership.propose([], ["B"])
    membership.not_changed(Seen("r", Document("c", 4, "B", (ME, "B", "C"), 2), 9, None))
    assert membership.why_over == "B has been elected (epoch 4)"
    assert membership.propose([], ["B"]) is None


def test_a_document_that_is_gone_elects_nobody() -> None:
    membership = leading()
    membership.propose([], ["B"])
    membership.not_changed(Seen("r", None, 0, None))
    assert not membership.why_over and membership.waits == {"B", "C"}


def test_an_older_document_or_another_clusters_elects_nobody() -> None:
    """R9: etcd was set back."""
    membership = leading()
    for document in (Document("c", 2, "B", ("B",), 2), Document("other", 9, "B", ("B",), 2)):
        assert not membership.saw(Seen("r", document, 9, None)) and not membership.why_over
    assert not membership.saw(Seen("r", Document("c", 3, "", ("B",), 2), 9, None))
    assert membership.why_over == "the cluster has begun anew (epoch 3)"
