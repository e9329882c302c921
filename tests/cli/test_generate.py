"""`fastvideo generate`."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fastvideo import observability
from fastvideo.cli import main as cli
from fastvideo.dataset.tiny_assets import write_tiny_wan_model
from fastvideo.pipelines import video_generator

if TYPE_CHECKING:
    from collections.abc import Sequence

ASKED = ["--model-path", "m", "--prompt", "a"]
SMALL = ["--height", "16", "--width", "32", "--num-frames", "1", "--num-inference-steps", "1"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny random model."""
    return str(write_tiny_wan_model(tmp_path_factory.mktemp("tiny") / "model"))


@pytest.fixture(autouse=True)
def _untouched_logging(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastvideo.logger.configure_logging", lambda *args, **kwargs: None)


def test_prompts_on_the_command_line(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files are named on standard output, one a line."""
    words = ["--model-path", model, "--prompt", "a", "--prompt", "b, c", *SMALL]
    assert cli.main(["generate", *words, "--output-path", str(tmp_path)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed == [str(tmp_path / "a.mp4"), str(tmp_path / "b, c.mp4")]
    assert all(Path(path).is_file() for path in printed)


def test_words_are_taken_to_the_letter(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts, paths and the like are not read as YAML, and may have any character."""
    monkeypatch.chdir(tmp_path)
    odd = 'line one\nline "two" [bold] 😀 \x01\x85\u2028'
    words = ["--model-path", model, *SMALL, "--guidance-scale", "2", "--negative-prompt", "[none]"]
    for prompt in (odd, "[a, b]", "null", "{a: b}", "7"):
        words += ["--prompt", prompt]
    assert cli.main(["generate", *words, "--output-path", "[out]"]) == 0
    names = ["line one line two [bold] 😀.mp4", "[a, b].mp4", "null.mp4", "{a b}.mp4", "7.mp4"]
    assert capsys.readouterr().out.splitlines() == [f"[out]/{name}" for name in names]


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=lambda value: value
)
def test_who_stops_a_batch_is_no_failure_of_it(
    model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
    status: int,
) -> None:
    """Whoever watches it learns that it has ended, and nobody has to look after it."""
    ended: list[dict[str, Any]] = []
    shutdown = observability.Telemetry.shutdown

    def noting(self: observability.Telemetry, **how: Any) -> None:
        ended.append(how)
        shutdown(self, **how)

    def stopped(*args: Any, **options: Any) -> Path:
        signal.raise_signal(number)
        raise AssertionError

    monkeypatch.setattr(observability.Telemetry, "shutdown", noting)
    monkeypatch.setattr(video_generator, "write_new_mp4", stopped)
    monkeypatch.setenv("FASTVIDEO_METRICS_PORT", "0")
    monkeypatch.setenv("FASTVIDEO_METRICS", "1")
    words = ["--model-path", model, "--prompt", "a", *SMALL, "--output-path", str(tmp_path)]
    try:
        given = cli.main(["generate", *words])
    except SystemExit as end:
        given = int(str(end.code))
    assert given == status
    assert (ended[0]["stopped"], ended[0]["linger"]) == (True, True)


def test_files_are_named_as_they_are_written(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever interrupts a batch knows what he has."""
    write, written = video_generator.write_new_mp4, []

    def interrupted(*args: Any, **options: Any) -> Path:
        if written:
            raise KeyboardInterrupt
        written.append(write(*args, **options))
        return written[0]

    monkeypatch.setattr(video_generator, "write_new_mp4", interrupted)
    words = ["--model-path", model, "--prompt", "a", "--prompt", "b", *SMALL]
    assert cli.main(["generate", *words, "--output-path", str(tmp_path)]) == 130
    printed = capsys.readouterr()
    assert printed.out == f"{tmp_path / 'a.mp4'}\n"
    assert printed.err == "interrupted\n"
    assert observability.active() is None


def test_ranks_are_warned_that_they_all_make_the_same(
    model: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing divides prompts among them."""
    monkeypatch.setattr("fastvideo.profiler.ranks.current_world_size", lambda: 4)
    words = ["--model-path", model, "--prompt", "a", *SMALL, "--output-path", str(tmp_path)]
    assert cli.main(["generate", *words]) == 0
    assert "each of the 4 ranks makes every prompt" in caplog.text


def test_variables_of_traces_are_checked_before_anything_is_loaded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As other mistakes: one line, although there is no such model either."""
    monkeypatch.setenv("FASTVIDEO_TRACE_ACTIVATIONS", "1")
    monkeypatch.setenv("FASTVIDEO_TRACE_STEPS", "a")
    assert cli.main(["generate", "--model-path", "no/model", "--prompt", "a"]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("error: environment variable FASTVIDEO_TRACE_STEPS='a': expected")
    assert len(errors.splitlines()) == 1


def test_misspelled_variables_are_named(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would do nothing otherwise, and say nothing."""
    monkeypatch.setenv("FASTVIDEO_TRACE_ACTIVATION", "1")
    assert cli.main(["generate", "--model-path", "no/model", "--prompt", "a"]) == 2
    assert (
        "FASTVIDEO_TRACE_ACTIVATION is set, but is no variable: is FASTVIDEO_TRACE_ACTIVATIONS "
        "meant?" in caplog.text
    )


def test_a_run_file_with_overrides(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is on the command line counts."""
    run = tmp_path / "run.yaml"
    run.write_text(
        f"generator: {{model_path: {model}}}\n"
        "request:\n"
        "  prompt: a red ball\n"
        f"  output: {{output_path: {tmp_path / 'x.mp4'}}}\n"
    )
    words = ["--request.sampling.seed", "7", "--generator.pipeline.flow_shift=5", *SMALL]
    assert cli.main(["generate", "--config", str(run), *words]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'x.mp4'}\n"


def test_some_prompts_of_a_file_are_no_good(
    model: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The good ones are made, the bad one is named, and the status says so."""
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"prompt": "a"}\n\n{"prompt": "b", "height": 50}\n{"prompt": "c"}\n')
    words = ["--model-path", model, "--prompt-path", str(prompts), *SMALL]
    assert cli.main(["generate", *words, "--output-path", str(tmp_path / "out")]) == 1
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert "prompt 2 of 3, 'b': ConfigError: height: expected a multiple of 16" in caplog.text
    beforehand = "prompt 2 of 3 will be left out: request.sampling.height: expected a multiple"
    assert beforehand in caplog.text.partition("loading ")[0]


def test_a_file_without_a_good_prompt_is_a_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """So nothing is loaded for it."""
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"prompt": "a", "hieght": 64}\n{"prompt": "b", "height": 50}\n')
    assert cli.main(["generate", "--model-path", "m", "--prompt-path", str(prompts)]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith(
        "error: none of the 2 prompts can be fulfilled: prompt 1: request.sampling.hieght: unknown "
        "field. Did you mean 'height'?"
    )
    assert len(errors.splitlines()) == 1


def test_a_run_file_that_is_no_yaml_is_a_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, with the place."""
    run = tmp_path / "run.yaml"
    run.write_text("generator:\n  model_path: m\nrequest: [a\n  b: }\n")
    assert cli.main(["generate", "--config", str(run)]) == 2
    assert capsys.readouterr().err == (
        f"error: --config {run} cannot be read as YAML: line 4, column 4: expected ',' or ']', but "
        "got ':' (while parsing a flow sequence in what begins in line 3)\n"
    )


def test_the_log_says_what_was_made(
    model: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What is loaded, what begins, and what a video took."""
    caplog.set_level("INFO", logger="fastvideo")
    words = ["--model-path", model, "--prompt", "a", *SMALL, "--output-path", str(tmp_path)]
    assert cli.main(["generate", *words]) == 0
    lines = [one.getMessage() for one in caplog.records if ".pipelines." in one.name]
    assert lines[:2] == [f"loading {model}", "prompt 1 of 1 begins: a"]
    assert re.fullmatch(
        rf"prompt 1 of 1 took \d+\.\d s: 16x32, 1 frame, 1 step: {tmp_path}/a\.mp4", lines[2]
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give a run file with --config FILE, or a model with --model-path PATH"),
        (["--config", "no.yaml"], "--config no.yaml: there is no such file"),
        (["--model-path", "no/model", "--prompt", "a"], "model_path 'no/model' is not a directory"),
        (["--model-path", "m"], "request.prompt: missing required field"),
        ([*ASKED, "--height", "x"], "request.sampling.height: expected a whole number"),
        ([*ASKED, "--height", "50"], "request.sampling.height: expected a multiple of 16"),
        ([*ASKED, "--num-frames", "4"], "request.sampling.num_frames: expected 4k + 1"),
        ([*ASKED, "--request.sampling.sede", "4"], "Did you mean 'seed'?"),
        ([*ASKED, "--generator.engine.bogus", "4"], "generator.engine.bogus: unknown field"),
        (
            [*ASKED, "--generator.engine.num_gpus", "4"],
            "generator.engine.num_gpus: only 1 is offered, got 4",
        ),
        ([*ASKED, "--sede", "4"], "--sede: unknown option. Did you mean '--seed'?"),
        ([*ASKED, "--promt", "b"], "--promt: unknown option. Did you mean '--prompt'?"),
        ([*ASKED, "--zzz", "b"], "--zzz: unknown option. Keys of the run file are set with"),
        ([*ASKED, "--num-inference-steps", "0"], "request.sampling.num_inference_steps: expected"),
        ([*ASKED, "--guidance-scale", "-1"], "request.sampling.guidance_scale: expected a number"),
        ([*ASKED, "--seed", "-1"], "request.sampling.seed: expected a whole number from 0"),
        ([*ASKED, "--fps", "0"], "request.sampling.fps: expected at least 1, got 0"),
        ([*ASKED, "--num-videos-per-prompt", "0"], "num_videos_per_prompt: expected a whole"),
        ([*ASKED, "--output-path", ""], "request.output.output_path: expected a folder"),
        ([*ASKED, "--output-path", "/dev/null/x"], "/dev/null is no directory"),
        ([*ASKED, "--output-path", "/proc/x"], "/proc cannot be written to"),
        (["--model-path", "m", "--prompt", " "], "request.prompt: expected text, got ' '"),
        (["--model-path", "m", "--prompt", "\udcff"], "request.prompt: expected text in UTF-8"),
        (["--config", "~no such user/run.yaml"], "--config: there is no such user"),
        (
            [*ASKED, "--output-path", "a.avi"],
            "request.output.output_path: expected a folder, or a file that ends in .mp4, got 'a.a",
        ),
        (
            ["--prompt-path", "no.txt", "--model-path", "m"],
            "request.prompt_path: no.txt cannot be read",
        ),
    ],
)
def test_mistakes_are_one_line(
    capsys: pytest.CaptureFixture[str], words: Sequence[str], message: str
) -> None:
    """Before anything is loaded, with the path of what is wrong."""
    assert cli.main(["generate", *words]) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert len(errors.splitlines()) == 1
