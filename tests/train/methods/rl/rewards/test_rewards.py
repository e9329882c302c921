"""Rewards: exact values of those that look at frames, and CLIP's from a tiny model on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from fastvideo.errors import ConfigError
from fastvideo.train.methods.rl.rewards import (
    CLIPScoreReward,
    MotionSmoothnessReward,
    SharpnessReward,
    TemporalFlickerReward,
    WeightedRewards,
)

if TYPE_CHECKING:
    from pathlib import Path


def _video(values: list[float]) -> torch.Tensor:
    """One video of flat frames [1, 3, T, 8, 8]."""
    return torch.tensor(values).reshape(1, 1, -1, 1, 1).expand(1, 3, -1, 8, 8)


def test_flicker_is_the_distance_of_neighbouring_frames() -> None:
    """Still: 1. Black and white in turn: 0. One frame: nothing to compare."""
    reward = TemporalFlickerReward()
    assert reward.score(_video([0.5, 0.5, 0.5]), [""]).tolist() == [1.0]
    assert reward.score(_video([0.0, 1.0, 0.0]), [""]).tolist() == [0.0]
    assert reward.score(_video([0.0, 0.5, 0.5]), [""]).tolist() == [0.75]
    assert reward.score(_video([0.3]), [""]).tolist() == [1.0]


def test_smoothness_is_the_distance_from_the_middle_of_the_neighbours() -> None:
    """Steady change is as smooth as none; a jump back is not."""
    reward = MotionSmoothnessReward()
    assert reward.score(_video([0.0, 0.25, 0.5, 0.75]), [""]).tolist() == [1.0]
    assert reward.score(_video([0.0, 1.0, 0.0]), [""]).tolist() == [0.0]
    assert reward.score(_video([0.0, 1.0]), [""]).tolist() == [1.0]


def test_sharpness_is_the_variance_of_the_laplacian() -> None:
    """A chequered frame by hand, blurring lowers it, and a flat one has none."""
    reward = SharpnessReward(half=2.0)
    row, column = torch.meshgrid(torch.arange(8), torch.arange(8), indexing="ij")
    chequered = ((row + column) % 2).float().expand(1, 3, 2, 8, 8)
    # every inner pixel: Laplacian +4 at 0 and -4 at 1, so the variance is 16
    torch.testing.assert_close(reward.score(chequered, [""]), torch.tensor([16 / 18]))
    assert reward.score(_video([0.2, 0.9]), [""]).tolist() == pytest.approx([0.0], abs=1e-9)
    noise = torch.rand((1, 3, 2, 16, 16), generator=torch.Generator().manual_seed(0))
    blurred = torch.nn.functional.avg_pool3d(noise, (1, 3, 3), stride=1, padding=(0, 1, 1))
    assert reward.score(blurred, [""]) < 0.5 * reward.score(noise, [""])
    with pytest.raises(ValueError, match="half of SharpnessReward must be above 0"):
        SharpnessReward(half=0)


@pytest.mark.parametrize(
    "reward", [SharpnessReward(), MotionSmoothnessReward(), TemporalFlickerReward()]
)
def test_videos_are_scored_each_by_itself(reward: Any) -> None:
    """A batch has the scores of its videos, in [0, 1]."""
    videos = torch.rand((3, 3, 4, 8, 8), generator=torch.Generator().manual_seed(1))
    together = reward.score(videos, ["a", "b", "c"])
    alone = torch.cat([reward.score(video[None], ["a"]) for video in videos])
    torch.testing.assert_close(together, alone)
    assert together.shape == (3,)
    assert bool(((together >= 0) & (together <= 1)).all())


def test_a_reward_that_is_null_is_left_out_and_a_weight_of_zero_only_measured() -> None:
    """So that one key can be switched off on the command line."""
    path = "fastvideo.train.methods.rl.rewards"
    rewards = WeightedRewards.from_mapping(
        {
            "gone": None,
            "flicker": {"_target_": f"{path}.TemporalFlickerReward"},
            "sharp": {"_target_": f"{path}.SharpnessReward", "weight": 0, "half": 0.5},
        }
    )
    scores = rewards.score(_video([0.0, 0.5]), [""])
    assert {name: score.tolist() for name, score in scores.items()} == {
        "flicker": [0.5],
        "sharp": pytest.approx([0.0], abs=1e-9),
        "avg": [0.5],
    }


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CLIP model of random weights, as transformers saves one."""
    import tokenizers  # noqa: PLC0415
    import transformers  # noqa: PLC0415

    folder = tmp_path_factory.mktemp("clip")
    words = ["<pad>", "<s>", "</s>", "<unk>", "a", "red", "blue", "square"]
    plain = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>")  # noqa: S106
    )
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    plain.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain,
        pad_token="<pad>",  # noqa: S106
        unk_token="<unk>",  # noqa: S106
        eos_token="</s>",  # noqa: S106
        bos_token="<s>",  # noqa: S106
        model_max_length=16,
    ).save_pretrained(folder)
    small = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    torch.manual_seed(0)
    model = transformers.CLIPModel(
        transformers.CLIPConfig(
            text_config={**small, "num_hidden_layers": 1, "vocab_size": 8, "eos_token_id": 2},
            vision_config={**small, "num_hidden_layers": 1, "image_size": 16, "patch_size": 8},
            projection_dim=8,
        )
    )
    model.save_pretrained(folder)
    return folder


def test_clip_scores_prompts_against_frames(clip: Path) -> None:
    """It is the mean cosine of what the model itself says of each frame and the prompt."""
    import transformers  # noqa: PLC0415

    videos = torch.rand((2, 3, 5, 20, 30), generator=torch.Generator().manual_seed(0))
    prompts = ["a red square", "blue"]
    scores = CLIPScoreReward(str(clip), num_frames=2).score(videos, prompts)

    model = transformers.CLIPModel.from_pretrained(clip)
    tokens = transformers.AutoTokenizer.from_pretrained(clip)
    mean = torch.tensor([0.48145466, 0.4578275, 0.40821073]).reshape(1, 3, 1, 1)
    std = torch.tensor([0.26862954, 0.26130258, 0.27577711]).reshape(1, 3, 1, 1)
    for video, prompt, score in zip(videos, prompts, scores, strict=True):
        frames = video[:, [0, 4], :, 5:25].transpose(0, 1)
        pixels = torch.nn.functional.interpolate(frames, (16, 16), mode="bicubic", antialias=True)
        with torch.no_grad():
            logits = model(
                **tokens([prompt], return_tensors="pt", return_token_type_ids=False),
                pixel_values=(pixels.clamp(0, 1) - mean) / std,
            ).logits_per_image
        expected = (logits / model.logit_scale.exp()).mean()
        torch.testing.assert_close(score, expected.detach())
    assert scores[0] != scores[1]


def test_a_clip_model_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what to do; and so is a number of frames that makes no sense."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    reward = CLIPScoreReward(str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"the CLIP model '.*none' cannot be loaded .*`model`"):
        reward.score(torch.rand(1, 3, 1, 8, 8), [""])
    with pytest.raises(ConfigError, match="num_frames"):
        CLIPScoreReward(num_frames=0)
