"""Configurations: what is read, and that every problem is one line with file and key."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.configure import ConfigInvalid, load

GOOD = """
name = "small"
[target]
rounds = 3
[data]
path = "tokens"
block_sequences = 32
[model]
model_type = "qwen3"
[inner]
steps = 8
batch_sequences = 8
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "run.toml"
    path.write_text(text)
    return path


def problems(folder: Path, text: str, *overrides: str) -> list[str]:
    """The lines of the refusal, without what each must begin with: the file's name, or the option
    that is to blame."""
    path = write(folder, text)
    with pytest.raises(ConfigInvalid) as refused:
        load(path, overrides)
    lines = str(refused.value).splitlines()
    assert all(line.startswith((f"{path}: ", "--set ")) for line in lines)
    return [line.removeprefix(f"{path}: ").removeprefix("--set ") for line in lines]


def test_a_file_is_read_and_defaults_fill_what_it_leaves_out(tmp_path: Path) -> None:
    config = load(write(tmp_path, GOOD))
    assert (config.name, config.target.rounds, config.inner.steps) == ("small", 3, 8)
    assert (config.outer.lr, config.lease_s) == (0.7, 30.0)


@pytest.mark.parametrize(
    ("override", "read", "value"),
    [
        ("inner.steps=16", lambda config: config.inner.steps, 16),
        ("outer.lr = 0.5", lambda config: config.outer.lr, 0.5),
        ("name=other", lambda config: config.name, "other"),
        ('name="quoted"', lambda config: config.name, "quoted"),
        ("model.layer_types=[1, 2]", lambda config: config.model["layer_types"], [1, 2]),
        ("snapshots.every_versions=2", lambda config: config.snapshots.every_versions, 2),
    ],
)
def test_an_override_replaces_one_value(tmp_path: Path, override, read, value) -> None:
    assert read(load(write(tmp_path, GOOD), [override])) == value


@pytest.mark.parametrize(
    ("override", "tokens", "rounds", "epochs"),
    [
        ("target.epochs=2", None, None, 2),
        ("target.tokens=500_000", 500_000, None, None),
        ("target.rounds=9", None, 9, None),
    ],
)
def test_a_target_that_is_given_takes_the_place_of_the_files(
    tmp_path: Path, override, tokens, rounds, epochs
) -> None:
    target = load(write(tmp_path, GOOD), [override]).target
    assert (target.tokens, target.rounds, target.epochs) == (tokens, rounds, epochs)


def test_two_targets_are_refused_wherever_they_are_given(tmp_path: Path) -> None:
    one = ["target: give exactly one of tokens, rounds, epochs"]
    assert problems(tmp_path, GOOD, "target.epochs=1", "target.tokens=5") == one
    assert problems(tmp_path, GOOD.replace("rounds = 3", "rounds = 3\ntokens = 9")) == one


def test_a_name_that_no_run_can_have_says_of_what_names_are_made(tmp_path: Path) -> None:
    says = "name: lower-case letters, digits and hyphens only, not 'My Run'"
    assert problems(tmp_path, GOOD, "name=My Run") == [says]


def test_a_place_of_blobs_is_told_its_form_and_a_secret_in_it_is_not_repeated(
    tmp_path: Path,
) -> None:
    says = 'blobs: write "broker" or "s3://bucket/prefix", and credentials nowhere in it'
    assert problems(tmp_path, GOOD, "blobs=s3://key:secret@host/bucket") == [says]


def test_an_unknown_key_is_named_with_the_one_that_was_meant(tmp_path: Path) -> None:
    found = problems(tmp_path, GOOD.replace("steps = 8", "stepz = 8"))
    assert found == ["inner.stepz: unknown key; did you mean inner.steps?"]


def test_an_unknown_table_is_named(tmp_path: Path) -> None:
    assert problems(tmp_path, GOOD + "[weather]\nsunny = true\n") == ["weather: unknown key"]


def test_a_negative_h_is_named_with_its_value(tmp_path: Path) -> None:
    found = problems(tmp_path, GOOD, "inner.steps=-3")
    assert found == ["inner.steps: input should be greater than or equal to 1, not -3"]


def test_a_batch_that_does_not_divide_the_block_is_refused(tmp_path: Path) -> None:
    found = problems(tmp_path, GOOD, "inner.batch_sequences=5")
    assert found == ["inner.batch_sequences = 5 does not divide data.block_sequences = 32"]


def test_a_grace_longer_than_the_deadline_is_refused_with_both(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, GOOD, "rounds.deadline_s=30")
    assert found.startswith("rounds: grace_s = 60 (its default) is longer than deadline_s = 30, ")
    assert "\n" not in found and "give a shorter grace_s" in found


def test_every_problem_is_reported_at_once(tmp_path: Path) -> None:
    found = problems(tmp_path, GOOD.replace('name = "small"', ""), "outer.momentum=1", "inner.lr=x")
    assert [line.partition(":")[0] for line in found] == ["name", "inner.lr", "outer.momentum"]


def test_text_that_is_no_toml_is_refused_with_its_line(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, "name = \n")
    assert found.startswith("not TOML: ") and "line 1" in found


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(b'name = "\xff"')
    with pytest.raises(ConfigInvalid, match="not UTF-8 text at byte 8"):
        load(path)


def test_what_an_override_has_wrong_is_not_blamed_on_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD.replace("[inner]", "[inner]\nclip = -2"))
    with pytest.raises(ConfigInvalid) as refused:
        load(path, ["inner.stepz=3", " outer.lr = -1"])
    found = str(refused.value).splitlines()
    assert sorted(line.partition(": ")[0] for line in found) == sorted(
        ["--set inner.stepz", "--set outer.lr", str(path)]
    )
    assert "did you mean inner.steps?" in "".join(found)


@pytest.mark.parametrize("override", ["steps", "=3", "inner.=3", "name.deep=3"])
def test_a_malformed_override_is_refused(tmp_path: Path, override: str) -> None:
    with pytest.raises(ConfigInvalid, match=f"^--set {override}: "):
        load(write(tmp_path, GOOD), [override])
