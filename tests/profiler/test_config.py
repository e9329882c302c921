"""What kernel tracing records, read from the environment."""

from __future__ import annotations

import logging

import pytest

from fastvideo.errors import ConfigError
from fastvideo.profiler import list_profiler_regions
from fastvideo.profiler.config import (
    TorchProfilerConfig,
    parse_ranks,
    parse_regions,
    parse_steps,
)

PREFIX = "profiler_region_"


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REGIONS", "STEPS", "RANKS"):
        monkeypatch.delenv(f"FASTVIDEO_TORCH_PROFILE_{name}", raising=False)
    for name in ("RECORD_SHAPES", "WITH_PROFILE_MEMORY", "WITH_STACK", "WITH_FLOPS"):
        monkeypatch.delenv(f"FASTVIDEO_TORCH_PROFILER_{name}", raising=False)
    monkeypatch.delenv("FASTVIDEO_TORCH_PROFILER_MAX_SEGMENTS", raising=False)


def test_the_environment_is_read_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every variable has its place in the configuration."""
    monkeypatch.setenv("FASTVIDEO_TORCH_PROFILE_REGIONS", "training_forward")
    monkeypatch.setenv("FASTVIDEO_TORCH_PROFILER_RECORD_SHAPES", "1")
    monkeypatch.setenv("FASTVIDEO_TORCH_PROFILER_WITH_PROFILE_MEMORY", "1")
    monkeypatch.setenv("FASTVIDEO_TORCH_PROFILER_WITH_STACK", "1")
    monkeypatch.setenv("FASTVIDEO_TORCH_PROFILER_WITH_FLOPS", "1")
    monkeypatch.setenv("FASTVIDEO_TORCH_PROFILE_STEPS", "10-12,100")
    monkeypatch.setenv("FASTVIDEO_TORCH_PROFILE_RANKS", "0,3")
    monkeypatch.setenv("FASTVIDEO_TORCH_PROFILER_MAX_SEGMENTS", "7")
    config = TorchProfilerConfig.from_env()
    assert config == TorchProfilerConfig(
        regions=frozenset({PREFIX + "training_forward"}),
        record_shapes=True,
        profile_memory=True,
        with_stack=True,
        with_flops=True,
        steps=((10, 12), (100, 100)),
        ranks=frozenset({0, 3}),
        max_segments=7,
    )


def test_the_defaults_are_everything_and_no_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """With regions alone, every step of every rank is traced, 200 segments, no options."""
    monkeypatch.setenv("FASTVIDEO_TORCH_PROFILE_REGIONS", "training_forward")
    config = TorchProfilerConfig.from_env()
    assert config.options == dict.fromkeys(
        ("record_shapes", "profile_memory", "with_stack", "with_flops"), False
    )
    assert (config.steps, config.ranks, config.max_segments) == ((), None, 200)
    assert config.min_free_bytes == 2 * 1024**3


def test_regions_are_known_by_any_spelling() -> None:
    """The prefix is optional; case and blanks do not matter; empty parts are nothing."""
    text = " Training_Forward , profiler_region_training_backward,PROFILER_REGION_Training_Train,,"
    expected = {PREFIX + name for name in ("training_forward", "training_backward")}
    assert parse_regions(text) == expected | {PREFIX + "training_train"}


def test_an_unknown_region_is_reported_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """The warning has the nearest region and all of them."""
    with caplog.at_level(logging.WARNING, logger="fastvideo"):
        found = parse_regions("training_forwrd,training_backward")
    assert found == {PREFIX + "training_backward"}
    assert len(caplog.records) == 1
    assert "'training_forwrd'" in caplog.text
    assert "Did you mean 'training_forward'?" in caplog.text
    assert "inference_decoding, training_train, training_train_one_step" in caplog.text


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "is not set, but FASTVIDEO_TORCH_PROFILER_DIR turns tracing on"),
        (" , ", "is ' , ', but FASTVIDEO_TORCH_PROFILER_DIR turns tracing on"),
        ("nothing_like_it", "='nothing_like_it' selects no registered region"),
    ],
)
def test_no_region_at_all_is_an_error(text: str, wrong: str) -> None:
    """The error names the variable, what it holds, and what it could hold, on short lines."""
    with pytest.raises(ConfigError) as caught:
        parse_regions(text)
    first, *listing = str(caught.value).splitlines()
    what = "name one or more of these regions, separated by commas:"
    assert (
        first == f"FASTVIDEO_TORCH_PROFILE_REGIONS{'' if wrong[0] == '=' else ' '}{wrong}; {what}"
    )
    assert listing[0].startswith("    model_loading, inference_request, inference_text_encoding, ")
    assert max(map(len, listing)) <= 88
    named = ",".join(listing).replace(" ", "").replace(",,", ",").split(",")
    assert named == [region.short_name for region in list_profiler_regions()]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ()),
        ("10-12,100", ((10, 12), (100, 100))),
        (" 7 , 3 - 4 ,", ((3, 4), (7, 7))),
        ("0", ((0, 0),)),
    ],
)
def test_step_windows(text: str, expected: tuple[tuple[int, int], ...]) -> None:
    """Steps and ranges of steps, both ends included."""
    assert parse_steps(text) == expected


@pytest.mark.parametrize("text", ["x", "5-3", "1-2-3", "-4", "1;2", "4-", "²"])
def test_a_step_window_that_is_none_is_an_error(text: str) -> None:
    """The error names the variable and the part that is wrong."""
    with pytest.raises(ValueError, match="FASTVIDEO_TORCH_PROFILE_STEPS contains") as caught:
        parse_steps(f"1,{text}")
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("all", None), (" ALL ", None), ("", None), ("0,3", {0, 3}), ("2-4,9", {2, 3, 4, 9})],
)
def test_rank_filters(text: str, expected: set[int] | None) -> None:
    """Ranks, ranges of ranks, and all."""
    assert parse_ranks(text) == expected


def test_ranks_that_no_run_has_are_an_error() -> None:
    """A range up to a number that is no rank is refused before it takes memory."""
    with pytest.raises(ValueError, match=r"goes up to rank 9999999999; .* above 99999"):
        parse_ranks("0-9999999999")


def test_a_rank_filter_that_is_none_is_an_error() -> None:
    """The error says what is accepted, ``all`` included."""
    with pytest.raises(ValueError, match=r"FASTVIDEO_TORCH_PROFILE_RANKS contains 'first'.*'all'"):
        parse_ranks("0,first")


def test_what_a_configuration_selects() -> None:
    """Regions by any spelling, steps in the window, ranks in the filter."""
    config = TorchProfilerConfig({"training_forward"}, steps=((2, 3),), ranks=frozenset({1}))
    assert config.selects_region("training_forward")
    assert config.selects_region(PREFIX + "training_forward")
    assert not config.selects_region("training_backward")
    assert [step for step in (None, 1, 2, 3, 4) if config.selects_step(step)] == [2, 3]
    assert [config.selects_rank(rank) for rank in (0, 1)] == [False, True]


def test_without_a_window_work_outside_of_steps_is_selected() -> None:
    """An empty window is no window."""
    config = TorchProfilerConfig({"model_loading"})
    assert config.selects_step(None)
    assert config.selects_rank(17)


def test_text_is_not_a_set_of_regions() -> None:
    """A region given as text would be taken for a set of letters."""
    with pytest.raises(TypeError, match="regions='training_forward' is text"):
        TorchProfilerConfig("training_forward")  # type: ignore[arg-type]
