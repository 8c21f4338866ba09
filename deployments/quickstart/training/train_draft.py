"""Owns the training of the EAGLE-3 head on the target's hidden states, about two minutes on one core.

Run as `python train_draft.py MODEL_DIR DRAFT_DIR [SECONDS]`, after train_target.py. Needs torch.
The head is unrolled for as many steps as it will draft (training-time test), on the corpus, against the
target's own distribution.
"""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path

import torch
from networks import DRAFT_CONFIG, TARGET_CONFIG, Draft, Target
from storage import load, save
from train_target import token_stream

STEPS = 3


def draft_vocabulary(stream: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The target ids that the draft knows, in order, and the offsets `d2t` that lead from draft to target."""
    counts = torch.bincount(stream, minlength=DRAFT_CONFIG["vocab_size"])
    order = torch.argsort(counts, descending=True, stable=True)[: DRAFT_CONFIG["draft_vocab_size"]]
    known = order.sort().values
    return known, known - torch.arange(len(known))


def main(model_dir: Path, out: Path, seconds: float) -> None:
    torch.manual_seed(2)
    torch.set_num_threads(1)
    stream = token_stream(model_dir, 2, 30_000)
    target = Target(TARGET_CONFIG)
    weights = load(model_dir / "model.safetensors")
    target.load_state_dict({k.removeprefix("model."): v.float() for k, v in weights.items()})
    target.requires_grad_(False)
    known, d2t = draft_vocabulary(stream)
    # The config names layers whose output is captured; in networks.py that is the input of the next.
    entering = tuple(n + 1 for n in DRAFT_CONFIG["eagle_config"]["eagle_aux_hidden_state_layer_ids"])
    draft = Draft(DRAFT_CONFIG)
    optimizer = torch.optim.AdamW(draft.parameters(), betas=(0.9, 0.95), weight_decay=0.01)
    start, step = time.monotonic(), 0
    while (spent := (time.monotonic() - start) / seconds) < 1:
        rows, length = (12, 160) if spent < 0.8 else (2, 768)
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(1, (step + 1) / 100) * (0.02 + 0.98 * math.cos(math.pi / 2 * spent) ** 2)
        begins = torch.randint(len(stream) - length - STEPS - 1, (rows,))
        batch = torch.stack([stream[b : b + length + STEPS] for b in begins.tolist()])
        with torch.no_grad():
            logits, fused = target(batch, entering)
            wanted = logits[..., known].softmax(-1)
            best = logits.argmax(-1)
        embeds = [target.embed_tokens(batch[:, s + 1 : s + 1 + length - 1]) for s in range(STEPS)]
        outputs = draft(embeds, fused[:, : length - 1])
        loss, hits = 0.0, []
        for s, output in enumerate(outputs):
            labels = wanted[:, s + 1 : s + length]
            loss = loss - 0.8**s * (labels * output.log_softmax(-1)).sum(-1).mean()
            hits.append((known[output.argmax(-1)] == best[:, s + 1 : s + length]).float().mean().item())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(draft.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0:
            agreed = " ".join(f"{h:.3f}" for h in hits)
            print(
                f"{time.monotonic() - start:6.1f} s  step {step}  loss {loss.item():.3f}  agreed {agreed}",
                flush=True,
            )
        step += 1
    save(out / "model.safetensors", dict(draft.state_dict()) | {"d2t": d2t})
    (out / "config.json").write_text(json.dumps(DRAFT_CONFIG, indent=2) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]) if len(sys.argv) > 3 else 120.0)
