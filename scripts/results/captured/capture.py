"""Trains a small character-level GPT and saves q, k and v of one of its attention layers.

The training text is that of the READMEs. The model has 4 layers of causal attention with 2 heads of
64, and a context of 256 characters. It trains until its loss on the last tenth of the text, which
is held out, stops falling, and keeps the best weights. Then the first window of that tenth passes
through the model, and the script writes q.npy, k.npy and v.npy (batch 1, heads 2, seqlen 256,
head-dim 64; fp16) into a folder, with capture.json, which records how they were made.

The capture.json in this folder identifies the text behind the committed arrays by its SHA-256: the
READMEs as they were on 2026-11-21. Today's are longer, so the script would train another model.

q is saved unscaled, so O = softmax(q·kᵀ/√64)·v with a causal mask, which this command computes:
    build/bin/00_naive --load scripts/results/captured --causal
The script needs PyTorch, and runs on a CUDA GPU if there is one, else on the CPU.

Usage: python3 scripts/results/captured/capture.py FOLDER
"""

import glob
import hashlib
import json
import math
import os
import sys

import torch
from torch import nn
from torch.nn import functional as F

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../.."))
sys.path.insert(0, os.path.join(ROOT, "scripts"))
from ladder.base.npy import npy  # noqa: E402

LAYERS, HEADS, HEAD_DIM, CONTEXT = 4, 2, 64, 256
WIDTH = HEADS * HEAD_DIM
DROPOUT, BATCH, LEARNING_RATE = 0.2, 64, 1e-3
EVALUATE_EVERY, PATIENCE = 50, 400  # steps; training stops after PATIENCE without a better loss
MOST_STEPS, LAYER = 2000, 2  # LAYER: the captured layer, counted from 0


def make_gpt(alphabet):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.projection = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(),
                                     nn.Linear(4 * WIDTH, WIDTH))
            self.dropout = nn.Dropout(DROPOUT)

        def attention(self, x):
            q, k, v = (part.unflatten(2, (HEADS, HEAD_DIM)).transpose(1, 2)
                       for part in self.qkv(x).split(WIDTH, dim=2))
            self.captured = None if self.training else (q, k, v)
            o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.projection(o.transpose(1, 2).flatten(2))

        def forward(self, x):
            x = x + self.dropout(self.attention(self.norm1(x)))
            return x + self.dropout(self.mlp(self.norm2(x)))

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.token, self.position = nn.Embedding(alphabet, WIDTH), nn.Embedding(CONTEXT, WIDTH)
            self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
            self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, alphabet)
            for weights in self.parameters():
                if weights.dim() == 2:
                    nn.init.normal_(weights, std=0.02)

        def forward(self, tokens, targets):
            """Returns the loss of predicting each target from the tokens before it."""
            x = self.token(tokens) + self.position(torch.arange(CONTEXT, device=tokens.device))
            logits = self.head(self.norm(self.blocks(x)))
            return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    return GPT()


def train(model, training, validation):
    """Trains the model, leaves the best weights in it, and returns their step and losses."""
    generator = torch.Generator().manual_seed(0)  # on the CPU, the same for every device

    def batch(data):
        starts = torch.randint(len(data) - CONTEXT, (BATCH, 1), generator=generator)
        window = (starts + torch.arange(CONTEXT + 1)).to(data.device)
        return data[window[:, :-1]], data[window[:, 1:]]

    held_out = [batch(validation) for _ in range(8)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.1)
    best, weights = {"best_step": 0, "validation_loss": math.inf}, None
    for step in range(1, MOST_STEPS + 1):
        model.train()
        loss = model(*batch(training))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % EVALUATE_EVERY:
            continue
        model.eval()
        with torch.no_grad():
            held_out_loss = sum(model(*pair).item() for pair in held_out) / len(held_out)
        print(f"step {step}: training loss {loss.item():.3f}, validation loss {held_out_loss:.3f}",
              file=sys.stderr)
        if held_out_loss < best["validation_loss"]:
            best = {"best_step": step, "training_loss": loss.item(),
                    "validation_loss": held_out_loss}
            weights = {name: value.clone() for name, value in model.state_dict().items()}
        if step - best["best_step"] >= PATIENCE:
            break
    model.load_state_dict(weights)
    return {"steps": step, **best}


def capture(folder):
    paths = sorted(
        glob.glob(os.path.join(ROOT, "*.md")) + glob.glob(os.path.join(ROOT, "*/README.md")))
    text = "\n".join(open(path, encoding="utf-8").read() for path in paths)
    alphabet = sorted(set(text))
    number = {character: i for i, character in enumerate(alphabet)}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokens = torch.tensor([number[character] for character in text], device=device)
    tenth = len(tokens) // 10
    training, validation = tokens[:-tenth], tokens[-tenth:]

    torch.manual_seed(0)
    model = make_gpt(len(alphabet)).to(device)
    result = train(model, training, validation)
    model.eval()
    with torch.no_grad():
        model(validation[None, :CONTEXT], validation[None, 1:CONTEXT + 1])
    arrays = {name: tensor.cpu().half()
              for name, tensor in zip("qkv", model.blocks[LAYER].captured)}
    record = {
        "shape": list(arrays["q"].shape), "dtype": "fp16", "causal": True,
        "scale": "1/sqrt(64), not applied to q",
        "text": [os.path.relpath(path, ROOT) for path in paths], "characters": len(text),
        "text_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "layers": LAYERS, "layer": LAYER,
        "parameters": sum(weights.numel() for weights in model.parameters()), "seed": 0,
        **result, "loss_of_guessing": math.log(len(alphabet)), "torch": str(torch.__version__),
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
    }
    os.makedirs(folder, exist_ok=True)
    for name, array in arrays.items():
        with open(os.path.join(folder, f"{name}.npy"), "wb") as file:
            file.write(npy(array.shape, array.flatten().tolist(), "<f2"))
    with open(os.path.join(folder, "capture.json"), "w", encoding="utf-8") as file:
        file.write(json.dumps(record, indent=1) + "\n")
    print(f"Wrote q, k and v of layer {LAYER} into {folder}: after {result['best_step']} steps, "
          f"validation loss {result['validation_loss']:.3f}.")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    capture(sys.argv[1])
