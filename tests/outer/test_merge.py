"""The merge weighs by what it is told, loses nothing to encoding, and is the same at every site."""

from pathlib import Path

import numpy as np
import pytest
import torch

from outer import codecs, merge
from outer.codecs import DeltaInvalid, NonFinite
from outer.nesterov import Rule
from outer.versions import OuterState


def random_tensors(seed: int, scale: float = 1.0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"embedding": (17, 5), "norm": (5,), "scalar": ()}
    return {k: scale * torch.randn(s, generator=generator) for k, s in shapes.items()}


def publish(tmp_path: Path, codec: str, *deltas: dict[str, torch.Tensor]) -> list[Path]:
    paths = [tmp_path / f"delta-{i}" for i in range(len(deltas))]
    for path, delta in zip(paths, deltas, strict=True):
        codecs.encode(delta, codec, path)
    return paths


def bits(tensors: dict[str, torch.Tensor]) -> dict[str, list[int]]:
    return {k: t.reshape(-1).view(torch.int32).tolist() for k, t in tensors.items()}


def merged(
    tmp_path: Path, cut: list[tuple[Path, float]], residual: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """D, as the lossless update of a step says it."""
    zeros = {name: torch.zeros_like(tensor) for name, tensor in residual.items()}
    copies = ({name: tensor.clone() for name, tensor in one.items()} for one in (zeros, zeros))
    state = OuterState(0, *copies, {name: tensor.clone() for name, tensor in residual.items()})
    merge.take_step(
        state, cut, rule=Rule.of(1.0, 0.0), codec="fp32", update_path=tmp_path / "update"
    )
    return codecs.decode(tmp_path / "update")


def test_weighted_sum_and_residual_match_numpy_bit_for_bit(tmp_path: Path) -> None:
    deltas, residual = [random_tensors(i) for i in range(3)], random_tensors(9, 1e-3)
    weights = [0.1, 1 / 3, 1 - 0.1 - 1 / 3]
    paths = publish(tmp_path, "fp32", *deltas)
    found = merged(tmp_path, list(zip(paths, weights, strict=True)), residual)
    for name in residual:
        terms = [np.float32(w) * d[name].numpy() for w, d in zip(weights, deltas, strict=True)]
        expected = ((terms[0] + terms[1]) + terms[2]) + residual[name].numpy()
        assert np.array_equal(found[name].numpy(), expected)


def test_the_order_of_the_cut_is_the_order_of_the_sum(tmp_path: Path) -> None:
    # 1 + 2^-24 + 2^-24 in fp32: each small term alone is lost, both together are not.
    values = [1.0, 2.0**-24, 2.0**-24]
    paths = publish(tmp_path, "fp32", *({"w": torch.tensor([v])} for v in values))
    zero = {"w": torch.zeros(1)}
    large_first = merged(tmp_path, [(path, 1.0) for path in paths], zero)
    small_first = merged(tmp_path, [(path, 1.0) for path in reversed(paths)], zero)
    assert large_first["w"].item() == 1.0
    assert small_first["w"].item() == 1.0 + 2.0**-23


def test_without_a_delta_there_is_no_step(tmp_path: Path) -> None:
    state = OuterState.initial(random_tensors(0))
    with pytest.raises(ValueError, match="no step"):
        merge.take_step(
            state, [], rule=Rule.of(0.7, 0.9), codec="fp32", update_path=tmp_path / "update"
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("num_sites", [1, 2, 4])
def test_equal_weights_equal_torch_sgd_on_the_mean_delta(num_sites: int, tmp_path: Path) -> None:
    # Means of 1, 2 or 4 small integers and lr, momentum of 1/2 are exact: equal bits, no residual.
    start = {name: (8 * tensor).round() for name, tensor in random_tensors(5).items()}
    parameters = {k: torch.nn.Parameter(t.clone()) for k, t in start.items()}
    sgd = torch.optim.SGD(parameters.values(), lr=0.5, momentum=0.5, dampening=0, nesterov=True)
    state = OuterState.initial(start)
    for round_ in range(5):
        deltas = [
            {k: (8 * t).round() for k, t in random_tensors(100 * round_ + i).items()}
            for i in range(num_sites)
        ]
        for name, parameter in parameters.items():
            parameter.grad = torch.stack([delta[name] for delta in deltas]).mean(0)
        sgd.step()
        paths = publish(tmp_path, "fp32", *deltas)
        state, _ = merge.take_step(
            state,
            [(path, 1 / num_sites) for path in paths],
            rule=Rule.of(0.5, 0.5),
            codec="fp32",
            update_path=tmp_path / "update",
        )
    assert state.version == 5
    assert bits(state.parameters) == bits({k: p.detach() for k, p in parameters.items()})


@pytest.mark.parametrize("codec", ["fp32", "bf16"])
def test_a_site_that_applies_the_updates_holds_the_coordinators_bits(
    codec: str, tmp_path: Path
) -> None:
    state = OuterState.initial(random_tensors(0))
    site = OuterState.initial(random_tensors(0))
    for round_ in range(4):
        paths = publish(tmp_path, codec, random_tensors(10 + round_), random_tensors(20 + round_))
        update = tmp_path / "update"
        cut = [(paths[0], 0.25), (paths[1], 0.75)]
        state, _ = merge.take_step(
            state, cut, rule=Rule.of(0.7, 0.9), codec=codec, update_path=update
        )
        merge.apply_update(site.parameters, site.momentum, update, Rule.of(0.7, 0.9))
        assert codecs.codec_of(update) == codec
    assert site.digests().parameters == state.digests().parameters
    assert site.digests().momentum == state.digests().momentum
    assert state.version == 4


def test_what_encoding_loses_stays_in_the_residual_and_is_made_good(tmp_path: Path) -> None:
    # 1 + 2^-9 is no bf16 (8 bits): each round publishes 1, until the residual tips the rounding.
    # Everything is exact in fp32, so after any round: sum of updates + residual = sum of deltas.
    delta = 1 + 2.0**-9
    [path] = publish(tmp_path, "fp32", {"w": torch.tensor([delta])})
    state, published = OuterState.initial({"w": torch.zeros(1)}), 0.0
    for round_ in range(1, 9):
        update = tmp_path / "update"
        state, _ = merge.take_step(
            state, [(path, 1.0)], rule=Rule.of(1.0, 0.0), codec="bf16", update_path=update
        )
        published += codecs.decode(update)["w"].item()
        assert published + state.residual["w"].item() == round_ * delta
        assert abs(state.residual["w"].item()) <= 2.0**-8
    assert published != 8.0  # the small part has come through
    assert state.parameters["w"].item() == -published


def test_a_lossless_update_leaves_what_rounding_kept_from_the_parameters(tmp_path: Path) -> None:
    paths = publish(tmp_path, "bf16", random_tensors(1), random_tensors(2))
    state, _ = merge.take_step(
        OuterState.initial(random_tensors(0)),
        [(paths[0], 0.3), (paths[1], 0.7)],
        rule=Rule.of(0.7, 0.9),
        codec="fp32",
        update_path=tmp_path / "update",
    )
    # Half a last digit of a parameter below 4 is 2^-23; the factor is (1 - 0.9)/0.7.
    largest = max(float(residual.abs().max()) for residual in state.residual.values())
    assert 0 < largest <= 2.0**-23 * 0.143


def test_a_member_of_another_form_is_named_and_the_state_is_untouched(tmp_path: Path) -> None:
    state = OuterState.initial(random_tensors(0))
    before = state.digests()
    good, bad = publish(tmp_path, "fp32", random_tensors(1), {"w": torch.ones(1)})
    torn = tmp_path / "torn"
    torn.write_bytes(good.read_bytes()[:-1])
    for member, name in ((bad, "delta-1"), (torn, "torn")):
        with pytest.raises(DeltaInvalid, match=name):
            merge.take_step(
                state,
                [(good, 0.5), (member, 0.5)],
                rule=Rule.of(0.7, 0.9),
                codec="bf16",
                update_path=tmp_path / "update",
            )
        assert state.digests() == before
        assert not (tmp_path / "update").exists()


def test_a_sum_that_the_codec_cannot_hold_is_named_and_no_update_is_left(tmp_path: Path) -> None:
    state = OuterState.initial(random_tensors(0))
    large = {name: torch.full_like(one, 3.4e38) for name, one in state.parameters.items()}
    [path] = publish(tmp_path, "fp32", large)
    with pytest.raises(NonFinite, match="embedding"):
        merge.take_step(
            state,
            [(path, 1.0)],
            rule=Rule.of(0.7, 0.9),
            codec="bf16",
            update_path=tmp_path / "update",
        )
    assert list(tmp_path.iterdir()) == [path]


def test_an_update_of_another_model_is_refused_before_anything_changes(tmp_path: Path) -> None:
    site = OuterState.initial(random_tensors(0))
    before = site.digests()
    wrong = random_tensors(1) | {"scalar": torch.ones(2)}  # the last tensor in order
    codecs.encode(wrong, "bf16", tmp_path / "update")
    with pytest.raises(DeltaInvalid, match="'scalar' of shape"):
        merge.apply_update(
            site.parameters,
            site.momentum,
            tmp_path / "update",
            Rule.of(0.7, 0.9),
        )
    assert site.digests() == before


@pytest.mark.parametrize("codec", ["fp32", "4-bit", "top-k"])
def test_many_pieces_on_one_two_and_three_threads_give_the_same_bits(
    codec: str, tmp_path: Path
) -> None:
    # Tensors of several pieces of 262,144 elements, the last one odd; two rounds, then two applied.
    chance = torch.Generator().manual_seed(3)
    start = {"long": torch.randn(600_001, generator=chance), "short": torch.randn(7)}
    deltas = [{k: 1e-3 * torch.randn(t.shape, generator=chance) for k, t in start.items()}] * 2
    paths, before = publish(tmp_path, codec, *deltas), torch.get_num_threads()
    found = []
    for num_threads in (1, 2, 3):
        torch.set_num_threads(num_threads)
        try:
            state, site = OuterState.initial(start), OuterState.initial(start)
            for round_ in range(2):
                update = tmp_path / f"update-{num_threads}-{round_}"
                state, digests = merge.take_step(
                    state,
                    [(paths[0], 0.25), (paths[1], 0.75)],
                    rule=Rule.of(0.7, 0.9),
                    codec=codec,
                    update_path=update,
                )
                parts = (site.parameters, site.momentum)
                assert merge.apply_update(*parts, update, Rule.of(0.7, 0.9)) == digests.parameters
                found.append((round_, digests, update.read_bytes()))
            assert torch.get_num_threads() == num_threads
        finally:
            torch.set_num_threads(before)
        assert state.digests() == digests
    assert found[:2] == found[2:4] == found[4:]
