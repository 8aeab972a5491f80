"""Error feedback: what encoding loses is delivered later, once, and nothing refused ever is."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from outer import codecs, feedback
from outer.codecs import NonFinite
from outer.feedback import Feedback
from outer.packing import CODECS

SHAPES = {"a": (70, 61), "b": (300,), "c": ()}
LOSSY = ("bf16", "int8", "4-bit", "top-k")

Tensors = dict[str, torch.Tensor]
Sums = dict[str, np.ndarray]


def delta(seed: int, scale: float = 1e-3) -> Tensors:
    random = np.random.default_rng(seed)
    return {
        name: torch.from_numpy(np.asarray(random.standard_normal(shape) * scale, np.float32))
        for name, shape in SHAPES.items()
    }


def nothing() -> Sums:
    return {name: np.zeros(shape) for name, shape in SHAPES.items()}


def add(total: Sums, tensors: Tensors) -> None:
    for name, tensor in tensors.items():
        total[name] = total[name] + tensor.numpy().astype(np.float64)


def pieces_of(tensors: Tensors) -> feedback.Values:
    return lambda name, piece: tensors[name].reshape(-1)[piece].clone()


def encode(site: Feedback, label: str, tensors: Tensors, codec: str, path: Path) -> Tensors:
    """Publish a copy; what a reader decodes."""
    norms = site.encode(label, pieces_of(tensors), codec, path)
    assert norms == codecs.measure(codecs.decode(path))
    return codecs.decode(path)


def start(folder: Path) -> Feedback:
    site = Feedback(folder, SHAPES)
    assert site.notice == ""
    return site


def same(one: Tensors, other: Tensors) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


@pytest.mark.parametrize(
    ("codec", "rounds"), [("bf16", 200), ("int8", 200), ("4-bit", 1000), ("top-k", 1000)]
)
def test_over_a_thousand_rounds_all_that_was_merged_is_delivered_and_nothing_refused(
    codec: str, rounds: int, tmp_path: Path
) -> None:
    site = start(tmp_path / "f")
    trained, delivered, largest = nothing(), nothing(), 0.0
    for number in range(rounds):
        tensors, merged = delta(number), number % 7 != 3
        decoded = encode(site, str(number), tensors, codec, tmp_path / "d")
        if number % 100 == 5:  # a new incarnation, before the log has decided
            site = start(tmp_path / "f")
            assert site.pending == (str(number),)
        site.settle(str(number), merged=merged)
        if merged:
            add(trained, tensors)
            add(delivered, decoded)
        largest = max(largest, *(float(v.abs().max()) for v in site.residual().values()))
    left = site.residual()
    for name in SHAPES:
        # each round rounds Δ + r and t − dec once; |t| ≤ |Δ| + |r|, and |t − dec| is a residual
        bound = rounds * (2 * largest + 5e-3) * 2.0**-23
        error = trained[name] - delivered[name] - left[name].numpy().astype(np.float64)
        assert np.abs(error).max() <= bound
        assert bound < 1e-3 * np.abs(trained[name]).max() or codec == "top-k"


def test_a_lossless_codec_has_no_residual_and_no_file(tmp_path: Path) -> None:
    site = start(tmp_path / "f")
    for number in range(3):
        decoded = encode(site, str(number), delta(number), "fp32", tmp_path / "d")
        assert same(decoded, delta(number))
        assert site.pending == ()
        site.settle(str(number), merged=True)
    assert site.residual() == {}
    assert not [path for path in (tmp_path / "f").iterdir() if path.name.startswith("residual")]


@pytest.mark.parametrize("codec", LOSSY)
def test_after_a_refusal_the_next_delta_is_as_if_the_refused_had_never_been(
    codec: str, tmp_path: Path
) -> None:
    site, other = start(tmp_path / "f"), start(tmp_path / "g")
    for one in (site, other):
        encode(one, "first", delta(1), codec, tmp_path / "d")
        one.settle("first", merged=True)
    encode(site, "refused", delta(2, scale=1e3), codec, tmp_path / "d")
    before = site.residual()
    site.settle("refused", merged=False)
    assert same(site.residual(), before)
    for one, path in ((site, tmp_path / "d"), (other, tmp_path / "e")):
        encode(one, "next", delta(3), codec, path)
    assert (tmp_path / "d").read_bytes() == (tmp_path / "e").read_bytes()


@pytest.mark.parametrize("merged", [True, False])
def test_a_residual_takes_effect_only_when_the_delta_is_merged(
    merged: bool, tmp_path: Path
) -> None:
    site = start(tmp_path / "f")
    decoded = encode(site, "one", delta(1), "4-bit", tmp_path / "d")
    assert site.pending == ("one",)
    assert site.residual() == {}
    site = start(tmp_path / "f")
    site.settle("one", merged=merged)
    lost = {name: tensor - decoded[name] for name, tensor in delta(1).items()}
    assert same(site.residual(), lost if merged else {})
    assert same(start(tmp_path / "f").residual(), lost if merged else {})
    assert site.pending == ()


@pytest.mark.parametrize("first_merged", [True, False])
@pytest.mark.parametrize("second_merged", [True, False])
@pytest.mark.parametrize("first_decided", [True, False])
def test_beside_an_undecided_delta_the_next_goes_without_residual_and_adds_its_own(
    first_merged: bool, second_merged: bool, first_decided: bool, tmp_path: Path
) -> None:
    site = start(tmp_path / "f")
    zero = encode(site, "zero", delta(0), "4-bit", tmp_path / "d")
    site.settle("zero", merged=True)
    one = encode(site, "one", delta(1), "4-bit", tmp_path / "d")
    two = encode(site, "two", delta(2), "top-k", tmp_path / "d")
    codecs.encode(delta(2), "top-k", tmp_path / "alone")
    assert (tmp_path / "d").read_bytes() == (tmp_path / "alone").read_bytes()
    answers = [("one", first_merged), ("two", second_merged)]
    for label, merged in answers if first_decided else reversed(answers):
        site = start(tmp_path / "f")
        site.settle(label, merged=merged)
    residual = {name: tensor - zero[name] for name, tensor in delta(0).items()}
    if first_merged:
        residual = {name: (delta(1)[name] + residual[name]) - one[name] for name in SHAPES}
    if second_merged:
        residual = {name: residual[name] + (delta(2)[name] - two[name]) for name in SHAPES}
    assert same(site.residual(), residual)
    assert site.pending == ()


def test_a_lossless_last_delta_takes_the_residual_along(tmp_path: Path) -> None:
    site = start(tmp_path / "f")
    first = encode(site, "first", delta(1), "top-k", tmp_path / "d")
    site.settle("first", merged=True)
    last = encode(site, "last", delta(2), "fp32", tmp_path / "d")
    lost = {name: tensor - first[name] for name, tensor in delta(1).items()}
    assert same(last, {name: delta(2)[name] + lost[name] for name in SHAPES})
    site = start(tmp_path / "f")
    assert site.pending == ("last",)
    assert same(site.residual(), lost)
    site.settle("last", merged=True)
    assert site.residual() == {}


def test_a_delta_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    site = start(tmp_path / "f")
    encode(site, "one", delta(1), "int8", tmp_path / "d")
    site.settle("one", merged=True)
    before, files = site.residual(), sorted((tmp_path / "f").iterdir())
    bad = delta(2)
    bad["b"][7] = torch.nan
    with pytest.raises(NonFinite, match="'b' holds NaN"):
        site.encode("two", pieces_of(bad), "int8", tmp_path / "e")
    with pytest.raises(FileNotFoundError):
        site.encode("two", pieces_of(delta(2)), "int8", tmp_path / "nowhere" / "e")
    assert same(site.residual(), before)
    assert site.pending == ()
    assert not (tmp_path / "e").exists()
    assert sorted((tmp_path / "f").iterdir()) == files


def test_a_label_is_given_once_and_an_unknown_one_settles_nothing(tmp_path: Path) -> None:
    site = start(tmp_path / "f")
    encode(site, "one", delta(1), "int8", tmp_path / "d")
    with pytest.raises(ValueError, match="'one' is pending already"):
        site.encode("one", pieces_of(delta(1)), "int8", tmp_path / "d")
    site.settle("another", merged=True)
    assert site.pending == ("one",)


def spoil_state(folder: Path) -> None:
    (folder / "feedback.json").write_text("{")


def cut(folder: Path) -> None:
    (path,) = folder.glob("residual-*")
    path.write_bytes(path.read_bytes()[:-1])


def lose(folder: Path) -> None:
    (path,) = folder.glob("residual-*")
    path.unlink()


def reboot(folder: Path) -> None:
    state = json.loads((folder / "feedback.json").read_text())
    (folder / "feedback.json").write_text(json.dumps(state | {"boot": "another"}))


DAMAGE = {
    "an unreadable state": (spoil_state, "cannot be read"),
    "a torn residual": (cut, "is torn"),
    "a lost residual": (lose, "is torn"),
    "a machine that was restarted": (reboot, "the machine was restarted"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_damaged_is_not_used_and_that_is_said(damage: str, tmp_path: Path) -> None:
    do, text = DAMAGE[damage]
    site = start(tmp_path)
    encode(site, "one", delta(1), "4-bit", tmp_path.parent / "d")
    site.settle("one", merged=True)
    do(tmp_path)
    site = Feedback(tmp_path, SHAPES)
    assert text in site.notice
    assert "starts anew" in site.notice
    assert site.residual() == {}
    assert not list(tmp_path.glob("residual-*"))
    encode(site, "two", delta(2), "4-bit", tmp_path.parent / "d")
    assert start(tmp_path).pending == ("two",)


def test_another_model_in_the_folder_is_not_used(tmp_path: Path) -> None:
    site = start(tmp_path)
    encode(site, "one", delta(1), "4-bit", tmp_path.parent / "d")
    site.settle("one", merged=True)
    assert "of another model" in Feedback(tmp_path, SHAPES | {"c": (2,)}).notice


def test_residuals_take_turns_in_two_files(tmp_path: Path) -> None:
    site, other = start(tmp_path / "f"), start(tmp_path / "g")
    nodes = []
    for number in range(6):
        decoded = encode(site, str(number), delta(number), "4-bit", tmp_path / "d")
        site.settle(str(number), merged=True)
        files = {path.name: path.stat().st_ino for path in (tmp_path / "f").iterdir()}
        nodes.append(files[f"residual-{number + 1}"])
        if number == 3:  # what is written over may be anything, and of any length
            (tmp_path / "f" / "spare").write_bytes(b"nothing of use" * 100_000)
        # with no file to write over, the bytes are the same
        assert same(encode(other, str(number), delta(number), "4-bit", tmp_path / "e"), decoded)
        other.settle(str(number), merged=True)
        (tmp_path / "g" / "spare").unlink(missing_ok=True)
        assert same(site.residual(), other.residual())
    assert set(files) == {"feedback.json", "residual-6", "spare"}
    assert nodes[2] == nodes[0] and nodes[3] == nodes[1]


def test_a_file_that_a_crash_left_is_swept(tmp_path: Path) -> None:
    site = start(tmp_path)
    encode(site, "one", delta(1), "4-bit", tmp_path.parent / "d")
    (tmp_path / "residual-7").write_bytes(b"written, but not named yet")
    (tmp_path / ".residual-8.1.part").write_bytes(b"half")
    start(tmp_path).settle("one", merged=True)
    assert {path.name for path in tmp_path.iterdir()} == {"feedback.json", "residual-1"}


@pytest.mark.parametrize("codec", CODECS)
def test_feedback_makes_up_for_a_codec(codec: str, tmp_path: Path) -> None:
    """The same delta again and again: what is delivered tends to what was trained."""
    site, rounds, delivered = start(tmp_path / "f"), 200, nothing()
    for number in range(rounds):
        add(delivered, encode(site, str(number), delta(1), codec, tmp_path / "d"))
        site.settle(str(number), merged=True)
    for name, tensor in delta(1).items():
        wanted = tensor.numpy().astype(np.float64) * rounds
        assert np.linalg.norm(delivered[name] - wanted) <= 0.25 * np.linalg.norm(wanted)
    assert feedback.Feedback(tmp_path / "f", SHAPES).pending == ()
