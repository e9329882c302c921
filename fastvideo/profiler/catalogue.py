"""The built-in regions: one line each, in the order a reader of a run meets them."""

from __future__ import annotations

from fastvideo.profiler.registry import RegionRegistry

BUILT_IN: dict[str, str] = {
    "model_loading": "Loading models and building the method before the first step",
    "inference_request": "One request for a video, from its text to the written file",
    "inference_text_encoding": "Encoding prompts with the text encoder",
    "inference_denoising": "The denoising loop of one request",
    "inference_denoising_step": "One step of a denoising loop, with and without guidance",
    "inference_decoding": "Decoding latents to frames with the VAE",
    "training_train": "The whole training run, from first to last step",
    "training_train_one_step": "One optimizer step with everything that belongs to it",
    "training_dataloader": "Waiting for the next batch of the data loader",
    "training_forward": "Forward pass and losses of one micro-batch",
    "training_backward": "Backward pass of one micro-batch",
    "training_optimizer": "Gradient clipping, optimizer and scheduler steps, zeroing gradients",
    "training_callbacks": "Callbacks at the end of a step",
    "training_validation": "Sampling and measuring validation videos",
    "training_save_checkpoint": "Saving a checkpoint",
    "distillation_teacher_forward": "A prediction of the frozen teacher",
    "distillation_student_forward": "A prediction of the student being distilled",
    "distillation_loss": "Loss arithmetic of a distillation method",
    "distillation_update": "Optimizer and scheduler steps of a distillation method",
    "dmd2_student_rollout": "The student's few-step sampling of DMD2",
    "dmd2_generator_loss": "The distribution matching loss of the student in DMD2",
    "dmd2_critic_loss": "The denoising loss of the critic (fake score) in DMD2",
    "nft_prompts": "Waiting for the next prompts of DiffusionNFT",
    "nft_rollout": "Sampling videos of a batch of prompts with the old policy of DiffusionNFT",
    "nft_reward": "Decoding and scoring the videos of a rollout of DiffusionNFT",
    "nft_decoding": "Decoding latents to videos that DiffusionNFT scores, a few at a time",
    "nft_advantages": "Comparing rewards over all ranks in DiffusionNFT, and waiting for the last",
    "nft_update": "An inner epoch of DiffusionNFT: losses, gradients, optimizer step and average",
    "nft_old_policy": "Letting the old policy of DiffusionNFT follow the student",
}


def built_in_registry() -> RegionRegistry:
    """Returns a new registry that holds the built-in regions."""
    registry = RegionRegistry()
    for name, description in BUILT_IN.items():
        registry.register(name, description)
    return registry
