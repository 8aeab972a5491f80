"""Versions have digests that notice everything, and files that are whole or refused."""

import hashlib
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from outer import versions
from outer.versions import OuterState, SnapshotInvalid

BASE = {"a": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "b": torch.zeros(3)}


def state(version: int = 7) -> OuterState:
    parts = [{k: t + i for k, t in BASE.items()} for i in range(3)]
    return OuterState(version, *parts)


def test_a_digest_is_sha256_over_names_dtypes_shapes_and_digests_of_values() -> None:
    expected = hashlib.sha256()
    for head, values in (
        (b'{"dtype":"float32","name":"a","shape":[2,2]}', struct.pack("<4f", 1, 2, 3, 4)),
        (b'{"dtype":"float32","name":"b","shape":[3]}', bytes(12)),
    ):
        piece = hashlib.sha256(values).digest()
        expected.update(struct.pack("<Q", len(head)) + head + piece)
    assert versions.digest(BASE) == expected.hexdigest()
    assert versions.digest(dict(reversed(BASE.items()))) == expected.hexdigest()
    assert versions.digest({}) == hashlib.sha256().hexdigest()


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_a_digest_of_many_pieces_is_that_of_their_digests_on_any_threads(num_threads: int) -> None:
    values = torch.arange(3 * 262_144 + 5, dtype=torch.float32)
    head = b'{"dtype":"float32","name":"a","shape":[786437]}'
    pieces = [values.numpy()[i : i + 262_144].tobytes() for i in range(0, 786_437, 262_144)]
    assert len(pieces) == 4
    expected = hashlib.sha256(struct.pack("<Q", len(head)) + head)
    expected.update(b"".join(hashlib.sha256(piece).digest() for piece in pieces))
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        assert versions.digest({"a": values}) == expected.hexdigest()
        assert torch.get_num_threads() == num_threads
    finally:
        torch.set_num_threads(before)


CHANGES: dict[str, dict[str, torch.Tensor]] = {
    "a value's last bit": BASE | {"b": torch.tensor([0.0, 0.0, 1e-45])},
    "the sign of a zero": BASE | {"b": torch.tensor([0.0, -0.0, 0.0])},
    "a shape": BASE | {"a": BASE["a"].reshape(4)},
    "the order in memory": BASE | {"a": BASE["a"].T},
    "a name": {"a": BASE["a"], "c": BASE["b"]},
    "a dtype of equal bytes": BASE | {"b": torch.zeros(3, dtype=torch.int32)},
    "a lacking tensor": {"a": BASE["a"]},
    "an empty tensor more": BASE | {"c": torch.zeros(0)},
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_digest_notices(change: str) -> None:
    assert versions.digest(CHANGES[change]) != versions.digest(BASE)


def test_a_digest_reads_values_not_memory() -> None:
    transposed = BASE["a"].T.contiguous().T
    assert not transposed.is_contiguous()
    assert versions.digest(BASE | {"a": transposed}) == versions.digest(BASE)


def test_version_0_is_a_copy_with_zero_momentum_and_residual_in_sorted_order() -> None:
    parameters = {"b": torch.nn.Parameter(torch.ones(3)), "a": torch.nn.Parameter(torch.ones(2, 2))}
    initial = OuterState.initial(parameters)
    with torch.no_grad():
        parameters["a"].fill_(5.0)
    assert initial.version == 0
    assert list(initial.parameters) == ["a", "b"]
    assert initial.parameters["a"].tolist() == [[1, 1], [1, 1]]
    assert not initial.parameters["a"].requires_grad
    zero = versions.digest({"a": torch.zeros(2, 2), "b": torch.zeros(3)})
    assert initial.digests().momentum == initial.digests().residual == zero


def test_version_0_of_parameters_that_are_its_own_takes_no_memory_for_them() -> None:
    parameters = {"b": torch.ones(3), "a": torch.ones(2, 2)}
    own = OuterState.of_own(parameters)
    assert [own.parameters[name].data_ptr() for name in ("a", "b")] == [
        parameters[name].data_ptr() for name in ("a", "b")
    ]
    assert own.digests() == OuterState.initial(parameters).digests()


def test_a_clone_shares_nothing() -> None:
    original = state()
    copy = original.clone()
    assert copy.digests() == original.digests()
    before = original.digests()
    for part in (copy.parameters, copy.momentum, copy.residual):
        part["a"].add_(1)
    assert original.digests() == before
    assert copy.version == original.version


def test_the_three_digests_are_of_the_three_parts() -> None:
    found = state().digests()
    assert found.parameters == versions.digest(BASE)
    assert found.momentum == versions.digest({k: t + 1 for k, t in BASE.items()})
    assert found.residual == versions.digest({k: t + 2 for k, t in BASE.items()})


def test_a_snapshot_gives_back_the_version_to_the_bit(tmp_path: Path) -> None:
    corners = np.array([0x80000000, 1, 0x807FFFFF, 0x7F7FFFFF], dtype=np.uint32).view(np.float32)
    parts = {"w": torch.from_numpy(corners.copy()), "empty": torch.zeros(0, 2)}
    saved = OuterState.initial(parts)
    versions.save_snapshot(saved, tmp_path / "s")
    loaded = versions.load_snapshot(tmp_path / "s")
    assert loaded.version == 0
    assert loaded.digests() == saved.digests()
    versions.save_snapshot(state(41), tmp_path / "s")
    loaded = versions.load_snapshot(tmp_path / "s")
    assert (loaded.version, loaded.digests()) == (41, state().digests())


def test_a_loaded_version_is_independent_of_its_file(tmp_path: Path) -> None:
    versions.save_snapshot(state(), tmp_path / "s")
    before = (tmp_path / "s").read_bytes()
    loaded = versions.load_snapshot(tmp_path / "s")
    loaded.parameters["a"].mul_(2)
    assert (tmp_path / "s").read_bytes() == before
    (tmp_path / "s").unlink()
    assert loaded.momentum["b"].tolist() == [1, 1, 1]


def test_equal_versions_give_equal_bytes(tmp_path: Path) -> None:
    turned = state()
    turned = OuterState(
        7,
        *(dict(reversed(p.items())) for p in (turned.parameters, turned.momentum, turned.residual)),
    )
    versions.save_snapshot(state(), tmp_path / "a")
    versions.save_snapshot(turned, tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    versions.save_parameters(state().parameters, tmp_path / "c")
    versions.save_parameters(turned.parameters, tmp_path / "d")
    assert (tmp_path / "c").read_bytes() == (tmp_path / "d").read_bytes()


def test_parameters_are_plain_safetensors_without_metadata(tmp_path: Path) -> None:
    versions.save_parameters(BASE, tmp_path / "p")
    assert versions.digest(load_file(tmp_path / "p")) == versions.digest(BASE)
    assert b"__metadata__" not in (tmp_path / "p").read_bytes()
    assert versions.digest(versions.load_parameters(tmp_path / "p")) == versions.digest(BASE)


def test_a_write_that_fails_leaves_the_old_file_and_no_rest(tmp_path: Path) -> None:
    versions.save_snapshot(state(1), tmp_path / "s")
    void = {"a": BASE["a"], "b": torch.empty(3, device="meta")}  # has no values to write
    with pytest.raises(RuntimeError):  # a kind of it, by version
        versions.save_snapshot(OuterState(2, void, void, void), tmp_path / "s")
    assert versions.load_snapshot(tmp_path / "s").version == 1
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def edit(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        versions.save_snapshot(state(), path)
        path.write_bytes(change(path.read_bytes()))

    return make


def written(
    metadata: dict[str, str] | None, **changes: torch.Tensor | None
) -> Callable[[Path], None]:
    tensors: dict[str, torch.Tensor | None] = {
        f"{kind}/w": torch.ones(2) for kind in ("parameters", "momentum", "residual")
    }
    tensors |= {key.replace("__", "/"): tensor for key, tensor in changes.items()}
    kept = {key: tensor for key, tensor in tensors.items() if tensor is not None}
    return lambda path: save_file(kept, path, metadata)


HEADER = {"atoll": '{"format": 1, "kind": "snapshot", "version": 3}'}
BAD: dict[str, tuple[Callable[[Path], None], str]] = {
    "nothing": (edit(lambda _: b""), "torn or no safetensors"),
    "a half": (edit(lambda data: data[: len(data) // 2]), "torn or no safetensors"),
    "a byte less": (edit(lambda data: data[:-1]), "torn or no safetensors"),
    "a byte more": (edit(lambda data: data + b"0"), "torn or no safetensors"),
    "no header": (written(None), "is no snapshot"),
    "a delta's header": (written({"atoll": '{"codec": "fp32", "format": 1}'}), "is no snapshot"),
    "a version below 0": (
        written({"atoll": '{"format": 1, "kind": "snapshot", "version": -1}'}),
        "is no snapshot",
    ),
    "a newer format": (
        written({"atoll": '{"format": 2, "kind": "snapshot", "version": 3}'}),
        "format 2, known here is 1",
    ),
    "a foreign tensor": (written(HEADER, extra=torch.ones(1)), "'extra', which is no part"),
    "a lacking residual": (written(HEADER, residual__w=None), "names or shapes of residual"),
    "another shape": (written(HEADER, momentum__w=torch.ones(3)), "names or shapes of momentum"),
    "another dtype": (
        written(HEADER, parameters__w=torch.ones(2, dtype=torch.bfloat16)),
        "'parameters/w' of BF16, not F32",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_snapshot_is_refused_with(case: str, tmp_path: Path) -> None:
    make, text = BAD[case]
    make(tmp_path / "snapshot")
    with pytest.raises(SnapshotInvalid, match=text) as caught:
        versions.load_snapshot(tmp_path / "snapshot")
    assert "\n" not in str(caught.value)


def test_torn_or_foreign_parameters_are_refused(tmp_path: Path) -> None:
    versions.save_parameters(BASE, tmp_path / "p")
    (tmp_path / "p").write_bytes((tmp_path / "p").read_bytes()[:-1])
    with pytest.raises(SnapshotInvalid, match="torn"):
        versions.load_parameters(tmp_path / "p")
    save_file({"w": torch.ones(2, dtype=torch.float16)}, tmp_path / "p")
    with pytest.raises(SnapshotInvalid, match="'w' of F16, not F32"):
        versions.load_parameters(tmp_path / "p")
