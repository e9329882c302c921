"""Requests and files of prompts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from fastvideo.errors import ConfigError
from fastvideo.pipelines.generation import GenerationRequest, read_prompts
from fastvideo.pipelines.sampling_param import SamplingParam

if TYPE_CHECKING:
    from pathlib import Path


def test_a_request_changes_what_it_names() -> None:
    """The rest is the preset's, which stays as it is."""
    preset = SamplingParam(height=64, seed=5)
    request = GenerationRequest.from_mapping(
        {
            "prompt": "a",
            "negative_prompt": "b",
            "sampling": {"seed": "7"},
            "output": {"save_video": "false"},
        }
    )
    param = request.parameters(preset)
    assert (param.height, param.seed, param.save_video, param.negative_prompt) == (
        64,
        7,
        False,
        "b",
    )
    assert preset == SamplingParam(height=64, seed=5)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"prmpt": "a"}, r"request\.prmpt: unknown field\. Did you mean 'prompt'"),
        ({"prompt": 3}, r"request\.prompt: expected text or a list, got 3"),
        ({"prompt": ["a", 3]}, r"request\.prompt\[1\]: expected text, got 3"),
        ({"prompt": "a", "sampling": {"output_path": "x"}}, r"sampling\.output_path: unknown"),
        ({"prompt": "a", "output": {"seed": 1}}, r"request\.output\.seed: unknown field"),
        ({"prompt": "a", "sampling": {"seed": "x"}}, r"request\.sampling\.seed: expected a whole"),
        ({}, r"request\.prompt: missing required field \(or request\.prompt_path\)"),
        ({"prompt": "a", "prompt_path": "b"}, r"request\.prompt: given, and request\.prompt_path"),
        ({"prompt": []}, r"request\.prompt: expected at least one prompt"),
    ],
)  # fmt: skip
def test_mistakes_are_named(values: object, message: str) -> None:
    """With the path of the field."""

    def understand() -> None:
        request = GenerationRequest.from_mapping(values)
        request.parameters(SamplingParam())
        request.prompts()

    with pytest.raises(ConfigError, match=message):
        understand()


def test_files_of_prompts(tmp_path: Path) -> None:
    """One a line, or objects with settings of their own; empty lines are left out."""
    text, lines = tmp_path / "p.txt", tmp_path / "p.jsonl"
    text.write_text("a red ball\n\n  snow \n")
    lines.write_text('{"prompt": "a", "seed": 3}\n\n{"prompt": "b"}\n')
    assert read_prompts(text) == [("a red ball", {}), ("snow", {})]
    assert read_prompts(lines) == [("a", {"seed": 3}), ("b", {})]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("p.txt", " \n", "holds no prompts"),
        ("p.jsonl", '{"prompt": "a"}\n{"p": 1}\n', r"line 2: expected an object with a 'prompt'"),
        ("p.jsonl", '{"prompt": "a"}\nx\n', "line 2 is not valid JSON"),
        ("p.txt", None, "cannot be read"),
    ],
)
def test_files_that_are_no_good(tmp_path: Path, name: str, text: str | None, message: str) -> None:
    """The line is named."""
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_prompts(tmp_path / name)


def test_a_prompt_may_hold_any_character(tmp_path: Path) -> None:
    """Only line feeds divide prompts, and a byte order mark is none of the text."""
    odd = "a\u2028b\x85c\x0bd\x1ce 😀"
    lines = tmp_path / "p.txt"
    lines.write_bytes(b"\xef\xbb\xbf" + f"{odd}\r\nsnow\r\n".encode())
    assert read_prompts(lines) == [(odd, {}), ("snow", {})]
    objects = tmp_path / "p.jsonl"
    values = [{"prompt": odd, "seed": 3}, {"prompt": "two\nlines"}]
    text = "\r\n".join(json.dumps(value, ensure_ascii=False) for value in values)
    objects.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert read_prompts(objects) == [(odd, {"seed": 3}), ("two\nlines", {})]
