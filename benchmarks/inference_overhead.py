"""What a request for a video costs beyond the model: our pipeline, and its telemetry.

In the same rounds, the same weights, noise and steps are sampled by ``diffusers.WanPipeline``, by
our generator without telemetry, and by our generator with metrics served and every span written to
a file. Times are processor time of the calling thread, which does all of the computing with
``OMP_NUM_THREADS=1``. The model is the tiny one at a size at which a step takes tens of
milliseconds, as the fastest real models do on a GPU; where steps are longer, overheads weigh less.

With ``--device cuda`` the transformer has the size of Wan 2.1 1.3B (random weights, bfloat16), and
times are those of the clock, until the device has done everything.

On a busy machine the same request takes ten per cent more or less, so a second figure is given that
swings less: the time outside of the networks, which are called alike (their inputs are equal to the
bit), as a ratio of 1 + the difference of these times over the whole request of the peer.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, Any

import torch
from _harness import Ratio, device_name, measure, parse_arguments, ratio, report
from diffusers import WanPipeline as StockWanPipeline
from diffusers import WanTransformer3DModel

from fastvideo import VideoGenerator, observability
from fastvideo.dataset.encoders import load_transformer, load_vae
from fastvideo.dataset.tiny_assets import TRANSFORMER_CONFIG, write_tiny_wan_model

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES: dict[str, dict[str, Any]] = {
    "cpu": {"height": 128, "width": 128, "num_frames": 9, "num_inference_steps": 6},
    "cuda": {"height": 480, "width": 832, "num_frames": 17, "num_inference_steps": 6},
}
LARGE = {
    "num_attention_heads": 12,
    "attention_head_dim": 128,
    "freq_dim": 256,
    "ffn_dim": 8960,
    "num_layers": 30,
    "rope_max_seq_len": 1024,
}
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
        watch: Times the networks; None on a device, which does their work later.
        ask: Makes a request.
        config: Telemetry of the requests, or None.
    """

    def __init__(
        self,
        watch: Watch | None,
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
        seconds = self._on_device() if self._watch is None else self._on_host(self._watch)
        if telemetry is not None:
            telemetry.shutdown()
        return seconds

    def _on_host(self, watch: Watch) -> float:
        watch.inside_s = 0.0
        before = thread_time()
        self._ask(len(self.outside_s))
        seconds = thread_time() - before
        self.outside_s.append(seconds - watch.inside_s)
        return seconds

    def _on_device(self) -> float:
        torch.cuda.synchronize()
        before = perf_counter()
        self._ask(len(self.outside_s))
        torch.cuda.synchronize()
        self.outside_s.append(0.0)  # to count requests
        return perf_counter() - before


def write_model(directory: Path, device: str) -> Path:
    """Returns a model with random weights: tiny, or with the transformer of a real one."""
    model = write_tiny_wan_model(directory / "model")
    if device == "cuda":
        with torch.device(device):
            transformer = WanTransformer3DModel(**(TRANSFORMER_CONFIG | LARGE))
        transformer.to(torch.bfloat16).save_pretrained(model / "transformer")
    return model


def stock_requests(model: Path, device: str) -> Requests:
    """Returns requests to the pipeline of diffusers."""
    on_device = device == "cuda"
    dtype = torch.bfloat16 if on_device else torch.float32
    transformer = load_transformer(model, dtype=dtype, sensitive_in_fp32=on_device).eval()
    pipeline = StockWanPipeline.from_pretrained(model, transformer=transformer, vae=load_vae(model))
    pipeline.text_encoder.to(dtype)
    pipeline.to(device)
    pipeline.set_progress_bar_config(disable=True)

    def ask(number: int) -> None:
        pipeline(
            "a red ball",
            negative_prompt=f"blurred {number % 2}",
            guidance_scale=GUIDANCE,
            output_type="pt",
            generator=torch.Generator().manual_seed(0),
            **SIZES[device],
        )

    modules = pipeline.transformer, pipeline.text_encoder, pipeline.vae.decoder
    return Requests(None if on_device else Watch(*modules), ask)


def our_requests(
    model: Path, device: str, config: observability.TelemetryConfig | None
) -> Requests:
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
            **SIZES[device],
        )

    if device == "cuda":
        return Requests(None, ask, config)
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
    arguments = parse_arguments(__doc__ or "", rounds=30, device=True)
    device: str = arguments.device
    if device == "cpu" and torch.cuda.is_available():
        sys.exit("pipelines take the GPU that there is; hide it with CUDA_VISIBLE_DEVICES=''")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        model = write_model(Path(directory), device)
        environ = {"FASTVIDEO_METRICS_PORT": "0", "FASTVIDEO_SPAN_DIR": f"{directory}/spans"}
        config = observability.TelemetryConfig.from_sources(environ)
        kinds = {
            STOCK: stock_requests(model, device),
            OURS: our_requests(model, device, None),
            OBSERVED: our_requests(model, device, config),
        }
        measured = measure(kinds, rounds=arguments.rounds)
    ratios = [ratio(measured, OURS, STOCK, GOAL), ratio(measured, OBSERVED, OURS, GOAL)]
    if device == "cpu":
        ratios += outside(kinds, measured)
    report(
        f"A request for a video on {device_name(device)}, as a ratio to the same request elsewhere",
        ratios,
        seconds=measured,
        json_path=arguments.json,
        outside_s={name: kind.outside_s for name, kind in kinds.items()},
    )
    for name, values in measured.items():
        print(f"{name}: {1e3 * statistics.median(values):.1f} ms")


if __name__ == "__main__":
    main()
