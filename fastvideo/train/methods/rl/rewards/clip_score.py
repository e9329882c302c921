"""How well a video fits its prompt, in the eyes of CLIP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, final

import torch
from torch.nn.functional import cosine_similarity, interpolate

from fastvideo.errors import ConfigError, import_extra
from fastvideo.logger import init_logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

logger = init_logger(__name__)

_MEAN: Final = (0.48145466, 0.4578275, 0.40821073)
_STD: Final = (0.26862954, 0.26130258, 0.27577711)
"""What CLIP's images are normalised by (Radford et al. 2021)."""


@final
class CLIPScoreReward:
    """Scores the cosine between a prompt and the frames, in [-1, 1] (Hessel et al. 2021).

    The model is loaded when the first video is scored.

    Args:
        model: A CLIP model of transformers: a local directory, or its name on the Hugging Face
            hub, from where it is downloaded once.
        num_frames: Frames that are looked at, evenly spaced.

    Raises:
        ConfigError: ``num_frames`` is less than 1.
    """

    def __init__(
        self,
        model: str = "openai/clip-vit-base-patch32",
        num_frames: Annotated[int, {"allowed": "at least 1", "unit": "frames"}] = 4,
    ) -> None:
        if num_frames < 1:
            message = f"method.rewards: num_frames of CLIPScoreReward is {num_frames}; at least 1"
            raise ConfigError(message)
        self.model = str(model)
        self.num_frames = int(num_frames)
        self._clip: Any = None
        self._tokenizer: Any = None

    @torch.no_grad()
    def score(self, videos: Tensor, prompts: Sequence[str]) -> Tensor:
        """Scores each video; see :class:`~fastvideo.train.methods.rl.rewards.reward.Reward`.

        Raises:
            ConfigError: The model cannot be loaded.
            MissingExtraError: transformers is not installed.
        """
        self._load(videos.device)
        text = self._tokenizer(list(prompts), padding=True, truncation=True, return_tensors="pt")
        text = {name: ids.to(videos.device) for name, ids in text.items()}
        text.pop("token_type_ids", None)
        wanted = self._features(self._clip.get_text_features(**text))
        seen = self._features(self._clip.get_image_features(pixel_values=self._pixels(videos)))
        seen = seen.reshape(videos.shape[0], -1, seen.shape[-1])
        return cosine_similarity(seen, wanted[:, None], dim=-1).mean(dim=1)

    def _features(self, output: Any) -> Tensor:  # noqa: ANN401 - tensor or transformers' output
        """Returns the features, which newer versions of transformers wrap."""
        features: Tensor = output if isinstance(output, torch.Tensor) else output.pooler_output
        return features.float()

    def _pixels(self, videos: Tensor) -> Tensor:
        """Returns some frames as CLIP wants them: [B·F, 3, S, S], the middle square, normalised."""
        frames = videos.shape[2]
        chosen = torch.linspace(0, frames - 1, min(self.num_frames, frames)).round().long()
        pixels = videos[:, :, chosen.to(videos.device)].float().transpose(1, 2).flatten(0, 1)
        size = int(self._clip.config.vision_config.image_size)
        height, width = pixels.shape[-2:]
        side = min(height, width)
        top, left = (height - side) // 2, (width - side) // 2
        square = pixels[..., top : top + side, left : left + side]
        resized = interpolate(square, (size, size), mode="bicubic", antialias=True).clamp(0, 1)
        mean, std = (resized.new_tensor(values)[None, :, None, None] for values in (_MEAN, _STD))
        return (resized - mean) / std

    def _load(self, device: torch.device) -> None:
        if self._clip is not None:
            return
        transformers = import_extra("transformers", extra="train")
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(self.model)
            clip = transformers.CLIPModel.from_pretrained(self.model)
        except Exception as error:  # whatever the hub, the disk or the files make of it
            reason = str(error).strip().partition("\n")[0]
            message = (
                f"method.rewards: the CLIP model {self.model!r} cannot be loaded "
                f"({type(error).__name__}: {reason}). Set `model` to a directory with a CLIP model "
                "of transformers, or to its name on the Hugging Face hub where that can be reached"
            )
            raise ConfigError(message) from error
        self._tokenizer = tokenizer
        self._clip = clip.requires_grad_(requires_grad=False).eval().to(device)
        logger.info("scoring with the CLIP model %s", self.model)
