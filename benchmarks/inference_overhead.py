"""What a request for a video costs beyond the model: our pipeline, and its telemetry.

In the same rounds, the same weights, noise and steps are sampled by ``diffusers.WanPipeline``, by
our generator without telemetry, and by our generator with metrics served and every span written to
a file. Times are processor time of the calling thread, which does all of the computing with
``OMP_NUM_THREADS=1``. The model is the tiny one at a size at which a step takes tens of
milliseconds, as the fastest real models do on a GPU; where steps are longer, overheads weigh less.

On a busy machine the same request takes ten per cent more or less, so a second figure is given that
swings less: the time outside of the networks, which are called alike (their inputs are equal to the
bit), as a ratio of 1 + the difference of these times over the whole request of the peer.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from time import thread_time
from typing import TYPE_CHECKING, Any

import torch
from _harness import Ratio, measure, parse_arguments, ratio, report
from diffusers import WanPipeline as StockWanPipeline

from fastvideo import VideoGenerator, observability
from fastvideo.dataset.encoders import load_transformer, load_vae
from fastvideo.dataset.tiny_assets import write_tiny_wan_model

if TYPE_CHECKING:
    from collections.abc import Callable

SIZE = {"height": 128, "width": 128, "num_frames": 9, "num_inference_steps": 6}
GUIDANCE = 3.0
GOAL = 1.01
STOCK, OURS, OBSERVED = "stock diffusers", "ours, telemetry off", "ours, telemetry on"


class Watch:
    """Adds up the time that is spent inside of networks.

    Args:
        modules: The networks.
    """

    def __init__(self, *modules: torch.nn.Module) -> None:
        self.inside_s = 0.0
        for module in modules:
            module.register_forward_pre_hook(self._enter)
            module.register_forward_hook(self._leave)

    def _enter(self, *_: object) -> None:
        self.inside_s -= thread_time()

    def _leave(self, *_: object) -> None:
        self.inside_s += thread_time()


class Requests:
    """Requests of one kind: what they take, and what of that is outside of the networks.

    Args:
        watch: Times the networks.
        ask: Makes a request.
        config: Telemetry of the requests, or None.
    """

    def __init__(
        self,
        watch: Watch,
        ask: Callable[[int], object],
        config: observability.TelemetryConfig | None = None,
    ) -> None:
        self._watch = watch
        self._ask = ask
        self._config = config
        self.outside_s: list[float] = []

    def __call__(self) -> float:
        """Makes a request and returns its seconds."""
        telemetry = None if self._config is None else observability.start(self._config)
        self._watch.inside_s = 0.0
        before = thread_time()
        self._ask(len(self.outside_s))
        seconds = thread_time() - before
        self.outside_s.append(seconds - self._watch.inside_s)
        if telemetry is not None:
            telemetry.shutdown()
        return seconds


def stock_requests(model: Path) -> Requests:
    """Returns requests to the pipeline of diffusers."""
    pipeline = StockWanPipeline.from_pretrained(
        model, transformer=load_transformer(model).eval(), vae=load_vae(model)
    )
    pipeline.set_progress_bar_config(disable=True)

    def ask(number: int) -> None:
        pipeline(
            "a red ball",
            negative_prompt=f"blurred {number % 2}",
            guidance_scale=GUIDANCE,
            output_type="pt",
            generator=torch.Generator().manual_seed(0),
            **SIZE,
        )

    return Requests(Watch(pipeline.transformer, pipeline.text_encoder, pipeline.vae.decoder), ask)


def our_requests(model: Path, config: observability.TelemetryConfig | None) -> Requests:
    """Returns requests to our generator."""
    generator: Any = VideoGenerator.from_pretrained(model)

    def ask(number: int) -> None:
        # Another negative prompt each time, which diffusers encodes in every request anyhow.
        generator.generate_video(
            "a red ball",
            negative_prompt=f"blurred {number % 2}",
            guidance_scale=GUIDANCE,
            save_video=False,
            return_frames=False,
            seed=0,
            **SIZE,
        )

    modules = generator.pipeline.modules
    encoder = modules["text_encoder"]._model  # noqa: SLF001 - to watch it
    return Requests(Watch(modules["transformer"], encoder, modules["vae"].decoder), ask, config)


def outside(kinds: dict[str, Requests], seconds: dict[str, list[float]]) -> list[Ratio]:
    """Returns the ratios that follow from the times outside of the networks."""
    rounds = len(seconds[STOCK])
    taken = {name: kind.outside_s[-rounds:] for name, kind in kinds.items()}
    compared: dict[str, list[float]] = {"whole": [1.0] * rounds}
    for case, unit in ((OURS, STOCK), (OBSERVED, OURS)):
        whole = statistics.median(seconds[unit])
        compared[f"{case}, outside the networks"] = [
            1 + (mine - theirs) / whole
            for mine, theirs in zip(taken[case], taken[unit], strict=True)
        ]
    return [ratio(compared, case, "whole", GOAL) for case in compared if case != "whole"]


def main() -> None:
    """Measures the three kinds of requests in turn."""
    arguments = parse_arguments(__doc__ or "", rounds=30)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        model = write_tiny_wan_model(Path(directory) / "model")
        environ = {"FASTVIDEO_METRICS_PORT": "0", "FASTVIDEO_SPAN_DIR": f"{directory}/spans"}
        config = observability.TelemetryConfig.from_sources(environ)
        kinds = {
            STOCK: stock_requests(model),
            OURS: our_requests(model, None),
            OBSERVED: our_requests(model, config),
        }
        measured = measure(kinds, rounds=arguments.rounds)
    report(
        "A request for a video: processor time, as a ratio to the same request elsewhere",
        [
            ratio(measured, OURS, STOCK, GOAL),
            ratio(measured, OBSERVED, OURS, GOAL),
            *outside(kinds, measured),
        ],
        seconds=measured,
        json_path=arguments.json,
        outside_s={name: kind.outside_s for name, kind in kinds.items()},
    )


if __name__ == "__main__":
    main()
