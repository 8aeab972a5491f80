"""The anchor rule: P − local is the undelivered progress, and nothing counts twice.

All values are small integers, which fp32 holds and adds exactly: so equalities are of bits.
"""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from outer.pseudo_gradient import PIECE, Anchor

Vector = list[int]
START = [100, -50, 7]
VECTORS = st.lists(st.integers(-9, 9), min_size=3, max_size=3)


def tensors(values: Vector) -> dict[str, torch.Tensor]:
    return {"a": torch.tensor(values[:2], dtype=torch.float32), "b": torch.tensor(float(values[2]))}


def values(tensors: dict[str, torch.Tensor]) -> Vector:
    return [int(x) for name in ("a", "b") for x in tensors[name].reshape(-1).tolist()]


def add(*vectors: Vector) -> Vector:
    return [sum(column) for column in zip([0, 0, 0], *vectors, strict=True)]


def subtract(left: Vector, right: Vector) -> Vector:
    return [x - y for x, y in zip(left, right, strict=True)]


class Trainer:
    """One site: an anchor and local parameters, beside a ledger in whole numbers."""

    def __init__(self) -> None:
        self.local = tensors(START)
        self.anchor = Anchor(tensors(START))
        self.undelivered: list[Vector] = []  # progress of the completed blocks since publishing
        self.pending: list[Vector] | None = None  # what the published, undecided delta holds

    def train(self, progress: Vector) -> None:
        for name, tensor in tensors(progress).items():
            self.local[name].sub_(tensor)
        self.undelivered.append(progress)

    def publish(self) -> Vector:
        delta = values(dict(self.anchor.publish(self.local)))
        self.pending, self.undelivered = self.undelivered, []
        return delta

    def progress(self) -> Vector:
        """P − local."""
        return subtract(values(dict(self.anchor.parameters)), values(self.local))


class Run(RuleBasedStateMachine):
    """Two sites under a model that subtracts every accepted delta once, in any order of events."""

    def __init__(self) -> None:
        super().__init__()
        self.sites = [Trainer(), Trainer()]
        self.model = START  # the newest version
        self.merged: list[Vector] = []

    @rule(i=st.integers(0, 1), progress=VECTORS)
    def train(self, i: int, progress: Vector) -> None:
        self.sites[i].train(progress)

    @rule(i=st.integers(0, 1))
    def publish(self, i: int) -> None:
        site = self.sites[i]
        if site.pending is None:
            expected = add(*site.undelivered)
            assert site.publish() == expected

    @rule(i=st.integers(0, 1))
    def refuse(self, i: int) -> None:
        site = self.sites[i]
        if site.pending is not None:
            site.pending = None
            site.anchor.rebase(site.local, tensors(self.model))

    @rule()
    def commit(self) -> None:
        """All undecided deltas are merged; their sites fold the new version in."""
        members = [site for site in self.sites if site.pending is not None]
        for site in members:
            self.merged.extend(site.pending or [])
            self.model = subtract(self.model, add(*(site.pending or [])))
            site.pending = None
        for site in members:
            site.anchor.rebase(site.local, tensors(self.model))

    @rule(i=st.integers(0, 1))
    def fold_a_version_without_being_a_member(self, i: int) -> None:
        """A delta that is still undecided then (a late one) stays with the coordinator."""
        self.sites[i].anchor.rebase(self.sites[i].local, tensors(self.model))

    @rule(i=st.integers(0, 1))
    def reclaim(self, i: int) -> None:
        self.sites[i].anchor.discard(self.sites[i].local)
        self.sites[i].undelivered = []

    @rule(i=st.integers(0, 1))
    def restart_after_bad_values(self, i: int) -> None:
        site = self.sites[i]
        if site.pending is not None:
            for tensor in site.local.values():
                tensor.fill_(float("nan"))
            site.anchor.restart(site.local, tensors(self.model))
            site.pending, site.undelivered = None, []
            assert values(site.local) == self.model

    @invariant()
    def progress_since_the_anchor_is_exactly_what_is_undelivered(self) -> None:
        for site in self.sites:
            assert site.progress() == add(*site.undelivered)

    @invariant()
    def the_model_holds_what_was_merged_once(self) -> None:
        assert self.model == subtract(START, add(*self.merged))


Run.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestRun = Run.TestCase


def test_publishing_delivers_all_progress_and_leaves_none() -> None:
    site = Trainer()
    site.train([1, 2, 3])
    site.train([4, 0, -1])
    assert site.publish() == [5, 2, 2]
    assert site.progress() == [0, 0, 0]


def test_a_new_version_keeps_the_undelivered_progress_on_top_of_it() -> None:
    site = Trainer()
    site.train([1, 1, 1])
    site.publish()
    site.train([2, 0, 5])
    site.anchor.rebase(site.local, tensors([10, 20, 30]))
    assert values(site.local) == [8, 20, 25]
    assert values(dict(site.anchor.parameters)) == [10, 20, 30]


def test_without_undelivered_progress_a_rebase_gives_the_new_version_to_the_bit() -> None:
    # New values that would be rounded beside the old ones: they must come through untouched.
    local = {"w": torch.tensor([1e8, 3.0])}
    anchor = Anchor({"w": local["w"].clone()})
    local["w"].sub_(torch.tensor([64.0, 0.1]))
    anchor.publish(local)
    new = {"w": torch.tensor([1e-8, 0.1])}
    anchor.rebase(local, new)
    assert torch.equal(local["w"], new["w"])


@settings(max_examples=30, deadline=None)
@given(st.lists(VECTORS, max_size=6))
def test_a_refused_delta_leaves_no_trace(blocks: list[Vector]) -> None:
    site = Trainer()
    for block in blocks:
        site.train(block)
    site.publish()
    site.anchor.rebase(site.local, tensors(START))
    assert values(site.local) == START


def test_the_trainers_tensors_are_changed_in_place_and_never_kept() -> None:
    parameter = torch.nn.Parameter(torch.tensor([4.0, 8.0]))
    anchor = Anchor({"w": torch.tensor([4.0, 8.0])})
    with torch.no_grad():
        parameter.sub_(1.0)
    delta = anchor.publish({"w": parameter})
    with torch.no_grad():
        parameter.sub_(1.0)
    assert anchor.parameters["w"].tolist() == [3.0, 7.0]
    assert delta["w"].tolist() == [1.0, 1.0] and not delta["w"].requires_grad
    anchor.rebase({"w": parameter}, {"w": torch.tensor([0.0, 0.0])})
    assert parameter.tolist() == [-1.0, -1.0]
    assert parameter.requires_grad


@settings(max_examples=30, deadline=None)
@given(st.lists(VECTORS, max_size=4), st.booleans(), VECTORS)
def test_a_version_that_is_changed_in_place_leaves_an_anchor_that_was_kept(
    blocks: list[Vector], published: bool, update: Vector
) -> None:
    """P is the version's own memory until that is changed: `keep` comes before."""
    site, theta = Trainer(), tensors(START)
    site.anchor.restart(site.local, theta)
    site.train([1, 2, 3])
    expected = [1, 2, 3]
    if published:
        assert site.publish() == expected
        expected = [0, 0, 0]
    for block in blocks:
        site.train(block)
    site.anchor.keep()
    for name, tensor in tensors(update).items():
        theta[name].sub_(tensor)
    assert site.progress() == add(expected, *blocks)
    site.anchor.rebase(site.local, theta)
    assert values(site.local) == subtract(START, add(update, expected, *blocks))
    assert site.anchor.parameters is theta


def test_pieces_and_threads_change_no_bit() -> None:
    generator = torch.Generator().manual_seed(3)
    shapes = {"large": (3 * PIECE + 7,), "small": (5, 3), "empty": (0,), "one": ()}
    drawn = {
        name: [torch.randn(shape, generator=generator) for _ in range(3)]
        for name, shape in shapes.items()
    }
    before = torch.get_num_threads()
    try:
        for num_threads in (1, 2, 3):
            torch.set_num_threads(num_threads)
            p, local, new = ({n: drawn[n][i].clone() for n in drawn} for i in range(3))
            Anchor(p).rebase(local, new)
            for name, (anchor, start, target) in drawn.items():
                assert torch.equal(local[name], (start - anchor) + target)
    finally:
        torch.set_num_threads(before)
