"""Gradient accumulation, clipping and a `GradScaler` with `AdaptiveLoader`.

Four batches make one step. The loader counts completed optimizer steps alone: neither the accumulated batches
nor the steps that the scaler skips bring the next refresh nearer. The scale starts so high that
the first steps overflow in half precision, on purpose, to show what is counted.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import dasgrad

NUM_ACCUMULATED = 4


def main(num_passes: int = 3) -> dict[str, int | float]:
    torch.manual_seed(0)
    images, digits = load_digits(return_X_y=True)
    dataset = TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(digits))
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    loss_fn = nn.CrossEntropyLoss(reduction="none")
    optimizer = dasgrad.DASGrad(model.parameters(), lr=0.02)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=10_000)
    scorer = dasgrad.ExampleScorer(model, loss_fn, optimizer)
    loader = dasgrad.AdaptiveLoader(dataset, batch_size=16, scorer=scorer, refresh=10)
    refreshed_at: list[int] = []
    loader.on_refresh(lambda refresh: refreshed_at.append(refresh.step))

    num_batches, num_skipped, recent = 0, 0, 0.0
    for _ in range(num_passes):
        for batch in loader:
            with torch.autocast("cpu", dtype=torch.float16):
                losses = loss_fn(model(batch.inputs), batch.targets)
            loss = batch.weighted_mean(losses)  # log this one: losses.mean() is not the training loss
            recent = loss.item() if num_batches == 0 else 0.95 * recent + 0.05 * loss.item()
            scaler.scale(loss / NUM_ACCUMULATED).backward()
            num_batches += 1
            if num_batches % NUM_ACCUMULATED == 0:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
                scale = scaler.get_scale()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                num_skipped += scaler.get_scale() < scale
    print(f"{num_batches} batches, {num_batches // NUM_ACCUMULATED} attempted steps, {num_skipped} skipped")
    print(f"{loader.num_steps} steps counted, refreshed before steps {refreshed_at}")
    print(f"recent training loss {recent:.3f}")
    return {"num_batches": num_batches, "num_skipped": num_skipped, "num_steps": loader.num_steps, "loss": recent}


if __name__ == "__main__":
    main()
