"""Owns the training of the target: corpus to `model.safetensors`, about six minutes on one core.

Run as `python train_target.py MODEL_DIR [SECONDS]`, after train_tokenizer.py. Needs torch. It trains for a
time, not for a number of steps, so that weights made again are as good and not the same.
"""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path

import corpus
import numpy as np
import torch
import torch.nn.functional as F
from networks import TARGET_CONFIG, Target
from storage import save

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))
from pocket.tokenizer import Tokenizer


def token_stream(model_dir: Path, seed: int, count: int) -> torch.Tensor:
    """Documents one after another, each between the begin and end tokens."""
    tokenizer = Tokenizer(model_dir / "tokenizer.json")
    ids: list[int] = []
    for text in corpus.documents(seed, count):
        ids += [*tokenizer.encode(text), tokenizer.eos_id]
    return torch.from_numpy(np.array(ids, dtype=np.int64))


def main(out: Path, seconds: float) -> None:
    torch.manual_seed(1)
    torch.set_num_threads(1)
    stream = token_stream(out, 1, 60_000)
    print(f"{len(stream)} tokens", flush=True)
    model = Target(TARGET_CONFIG)
    decayed = [p for p in model.parameters() if p.ndim == 2]
    plain = [p for p in model.parameters() if p.ndim != 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))
    start, step = time.monotonic(), 0
    while (spent := (time.monotonic() - start) / seconds) < 1:
        # The last part is trained at full length, so that late positions are as good as early ones.
        rows, length = (8, 192) if spent < 0.7 else (2, 1023)
        for group in optimizer.param_groups:
            group["lr"] = 4e-3 * min(1, (step + 1) / 100) * (0.02 + 0.98 * math.cos(math.pi / 2 * spent) ** 2)
        begins = torch.randint(len(stream) - length - 1, (rows,))
        batch = torch.stack([stream[b : b + length + 1] for b in begins.tolist()])
        logits, _ = model(batch[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0:
            print(f"{time.monotonic() - start:6.1f} s  step {step}  loss {loss.item():.3f}", flush=True)
        step += 1
    save(out / "model.safetensors", {f"model.{k}": v for k, v in model.state_dict().items()})
    (out / "config.json").write_text(json.dumps(TARGET_CONFIG, indent=2) + "\n")
    generation = {"bos_token_id": 0, "eos_token_id": 1, "do_sample": True, "temperature": 0.6, "top_p": 0.95}
    (out / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 330.0)
