#!/usr/bin/env python3
"""Trains a small character-level GPT and saves q, k and v of one of its attention layers.

The text is that of the files given, by default the repository's Markdown. The model is the usual
one: causal attention with 2 heads of 64, context 256, dropout, AdamW. It trains until the loss on
the last tenth of the text, which it does not train on, stops falling, or the limits are reached; the
best weights are kept. Then one window of that tenth passes through it, and q.npy, k.npy, v.npy
(batch 1, heads 2, seqlen 256, head-dim 64; fp16) and capture.json are written, all or none.

q is saved before it is scaled: attention is softmax(q·kᵀ/√64)·v with a causal mask, so
    build/bin/00_naive --load scripts/captured --causal
computes that layer. Needs PyTorch; uses a CUDA GPU if there is one.
"""

import argparse
import contextlib
import glob
import hashlib
import json
import math
import os
import shlex
import struct
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HEADS, HEAD_DIM, CONTEXT = 2, 64, 256
WIDTH = HEADS * HEAD_DIM
DROPOUT, BATCH, LEARNING_RATE, WARM_UP = 0.2, 64, 1e-3, 100
EVALUATE_EVERY, EVALUATE_BATCHES, PATIENCE = 50, 8, 8  # steps, batches, evaluations


def stop(message):
    print(f"scripts/capture_qkv.py: {message}", file=sys.stderr)
    sys.exit(2)


def markdown_files():
    """The repository's own, in a fixed order; without git all that lie in it."""
    with contextlib.suppress(OSError):
        listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-z", "*.md"], capture_output=True,
                                text=True)
        names = sorted(name for name in listed.stdout.split("\0") if name)
        if listed.returncode == 0 and names:
            return [os.path.join(ROOT, name) for name in names]
    return sorted(glob.glob(os.path.join(ROOT, "**/*.md"), recursive=True))


def read_text(paths):
    parts = []
    for path in paths:
        try:
            with open(path, encoding="utf-8") as file:
                parts.append(file.read())
        except (OSError, UnicodeDecodeError) as error:
            stop(f"{path}: {error}")
    text = "\n".join(parts)
    # The last tenth has to hold more than one window.
    if len(text) < 20 * CONTEXT:
        stop(f"{len(text)} characters of text are too few to train on; give more files "
             f"({20 * CONTEXT} characters or more)")
    return text


def make_gpt(vocabulary, layers):
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
            self.projection = nn.Linear(WIDTH, WIDTH)
            self.captured = None  # (q, k, v) of the last pass in evaluation mode

        def forward(self, x):
            batch, length, _ = x.shape
            q, k, v = (part.view(batch, length, HEADS, HEAD_DIM).transpose(1, 2)
                       for part in self.qkv(x).split(WIDTH, dim=2))
            if not self.training:
                self.captured = (q, k, v)
            o = F.scaled_dot_product_attention(q, k, v, is_causal=True,
                                               dropout_p=DROPOUT if self.training else 0.0)
            return self.projection(o.transpose(1, 2).reshape(batch, length, WIDTH))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.attention = Attention()
            self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(),
                                     nn.Linear(4 * WIDTH, WIDTH))
            self.dropout = nn.Dropout(DROPOUT)

        def forward(self, x):
            x = x + self.dropout(self.attention(self.norm1(x)))
            return x + self.dropout(self.mlp(self.norm2(x)))

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.token = nn.Embedding(vocabulary, WIDTH)
            self.position = nn.Embedding(CONTEXT, WIDTH)
            self.dropout = nn.Dropout(DROPOUT)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.norm = nn.LayerNorm(WIDTH)
            self.head = nn.Linear(WIDTH, vocabulary)
            self.apply(self.initialise)

        @staticmethod
        def initialise(module):
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

        def forward(self, tokens, targets):
            x = self.token(tokens) + self.position(torch.arange(CONTEXT, device=tokens.device))
            x = self.dropout(x)
            for block in self.blocks:
                x = block(x)
            logits = self.head(self.norm(x))
            return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    return GPT()


def train(model, training, validation, options):
    """Leaves the best weights in the model; returns the steps taken, and step and losses of the best."""
    import torch

    device = training.device
    generator = torch.Generator().manual_seed(options.seed)  # on the CPU: the same on every device

    def batch(data):
        starts = torch.randint(len(data) - CONTEXT, (BATCH, 1), generator=generator)
        window = (starts + torch.arange(CONTEXT + 1)).to(device)
        return data[window[:, :-1]], data[window[:, 1:]]

    fixed = {name: [batch(data) for _ in range(EVALUATE_BATCHES)]
             for name, data in (("training", training), ("validation", validation))}

    @torch.no_grad()
    def losses():
        model.eval()
        means = {name: sum(model(*pair).item() for pair in pairs) / len(pairs)
                 for name, pairs in fixed.items()}
        model.train()
        return means

    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / WARM_UP))
    best = {"step": 0, "validation": math.inf}
    weights, since = None, 0
    begin = time.monotonic()
    model.train()
    for step in range(1, options.steps + 1):
        loss = model(*batch(training))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        late = time.monotonic() - begin >= options.seconds
        if step % EVALUATE_EVERY and step < options.steps and not late:
            continue
        now = losses()
        print(f"step {step}, {time.monotonic() - begin:.0f} s: training loss "
              f"{now['training']:.3f}, validation loss {now['validation']:.3f}", file=sys.stderr)
        since += 1
        if now["validation"] < best["validation"]:
            best, since = {"step": step, **now}, 0
            weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
        if late or since == PATIENCE:
            break
    if weights is None:
        stop("the loss is not a number; try another --seed")
    model.load_state_dict(weights)
    return step, best


def npy(tensor):
    """The bytes of a .npy file, version 1.0, little-endian float16 in C order."""
    import torch

    half = tensor.detach().cpu().to(torch.float16).contiguous()
    if not torch.isfinite(half).all():
        stop("a captured value is too large for fp16; try another --seed or --layer")
    header = repr({"descr": "<f2", "fortran_order": False, "shape": tuple(half.shape)})
    header += " " * (-(10 + len(header) + 1) % 64) + "\n"
    values = half.flatten().view(torch.int16).tolist()
    return (b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() +
            struct.pack(f"<{len(values)}h", *values))


def write_all(folder, files):
    """Writes every file beside its place first, so that a failure leaves the folder as it was."""
    parts = []
    try:
        os.makedirs(folder, exist_ok=True)
        for name, content in files.items():
            parts.append(os.path.join(folder, f".{name}.part"))
            with open(parts[-1], "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        for part, name in zip(parts, files):
            os.replace(part, os.path.join(folder, name))
    except OSError as error:
        stop(f"cannot write to {folder}: {error.strerror}")
    finally:
        for part in parts:
            with contextlib.suppress(OSError):
                os.unlink(part)


def main():
    description, epilog = __doc__.split("\n\n", 1)
    parser = argparse.ArgumentParser(description=description, epilog=epilog,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="*", help="UTF-8 text files (default: the repository's *.md)")
    parser.add_argument("--out", default=os.path.join(ROOT, "scripts/captured"), metavar="DIR",
                        help="where to write (default: scripts/captured)")
    parser.add_argument("--steps", type=int, default=2000, help="at most (default 2000)")
    parser.add_argument("--seconds", type=float, default=60, help="of training at most (default 60)")
    parser.add_argument("--layers", type=int, default=4, help="of the model (default 4)")
    parser.add_argument("--layer", type=int, default=2, help="to capture, from 0 (default 2)")
    parser.add_argument("--seed", type=int, default=0, help="(default 0)")
    parser.add_argument("--device", choices=["auto", "cuda", "cpu"], default="auto",
                        help="(default auto: cuda if there is a GPU)")
    options = parser.parse_args()
    if options.steps < 1 or options.seconds <= 0 or not 0 <= options.layer < options.layers:
        parser.error("--steps and --seconds must be positive, and --layer one of --layers")
    try:
        import torch
    except ImportError:
        stop("PyTorch is missing. To install: python3 -m pip install torch")
    if options.device == "cuda" and not torch.cuda.is_available():
        stop("--device cuda: PyTorch finds no CUDA GPU")
    on_gpu = options.device == "cuda" or (options.device == "auto" and torch.cuda.is_available())
    device = torch.device("cuda" if on_gpu else "cpu")

    paths = options.text or markdown_files()
    text = read_text(paths)
    alphabet = sorted(set(text))
    number = {character: i for i, character in enumerate(alphabet)}
    tokens = torch.tensor([number[character] for character in text], device=device)
    training, validation = tokens[:-(len(tokens) // 10)], tokens[-(len(tokens) // 10):]

    torch.manual_seed(options.seed)
    model = make_gpt(len(alphabet), options.layers).to(device)
    steps, best = train(model, training, validation, options)

    model.eval()
    with torch.no_grad():
        model(validation[None, :CONTEXT], validation[None, 1:CONTEXT + 1])
    arrays = dict(zip("qkv", model.blocks[options.layer].attention.captured))
    record = {
        "command": shlex.join(["scripts/capture_qkv.py", *sys.argv[1:]]),
        "tensors": {"shape": list(arrays["q"].shape), "dtype": "fp16", "causal": True,
                    "scale": "1/sqrt(64), not yet applied to q"},
        "text": {"files": [os.path.relpath(path, ROOT) for path in paths],
                 "characters": len(text), "alphabet": len(alphabet),
                 "sha256": hashlib.sha256(text.encode()).hexdigest()},
        "model": {"layers": options.layers, "layer": options.layer, "heads": HEADS,
                  "head_dim": HEAD_DIM, "context": CONTEXT,
                  "parameters": sum(p.numel() for p in model.parameters())},
        "training": {"steps": steps, "best_step": best["step"], "batch": BATCH, "seed": options.seed,
                     "training_loss": round(best["training"], 4),
                     "validation_loss": round(best["validation"], 4),
                     "loss_of_guessing": round(math.log(len(alphabet)), 4)},
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
    }
    files = {f"{name}.npy": npy(tensor) for name, tensor in arrays.items()}
    files["capture.json"] = (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode()
    write_all(options.out, files)
    print(f"Wrote {', '.join(files)} to {os.path.relpath(options.out)}: layer {options.layer} after "
          f"{best['step']} steps, validation loss {best['validation']:.3f}.")


if __name__ == "__main__":
    main()
