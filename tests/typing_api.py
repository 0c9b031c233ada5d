"""The public API as a typed program uses it; checked by mypy in `make lint`, not executed."""

import torch
from torch import Tensor

import dasgrad

model = torch.nn.Linear(4, 2)
loss_fn = torch.nn.CrossEntropyLoss(reduction="none")
optimizer = dasgrad.DASGrad(model.parameters(), lr=1e-3, projection=dasgrad.projections.L2Ball(1.0))
scheduler: torch.optim.lr_scheduler.LRScheduler = dasgrad.InverseSqrtLR(optimizer)
scorer = dasgrad.ExampleScorer(model, loss_fn, optimizer, preconditioner="frozen")
dataset = torch.utils.data.TensorDataset(torch.zeros(8, 4), torch.zeros(8, dtype=torch.int64))
loader = dasgrad.AdaptiveLoader(dataset, batch_size=2, scorer=scorer, refresh=3)

for batch in loader:
    losses: Tensor = loss_fn(model(batch.inputs), batch.targets)
    optimizer.zero_grad()
    loss: Tensor = batch.backward(losses, optimizer)
    nothing: None = optimizer.step()
    value: float = optimizer.step(lambda: 0.0)

loop = dasgrad.CapturedLoop(loader, scheduler=scheduler)
means: Tensor = loop.run(10)
whole_pass: Tensor = dasgrad.CapturedLoop(loader, model, loss_fn, optimizer).run()

tree = dasgrad.SegmentTree(torch.ones(3))
pair: tuple[Tensor, Tensor] = tree.sample(2, generator=torch.Generator())
sampler = dasgrad.AdaptiveSampler(3, 2, target=dasgrad.targets.uniform(3))
probabilities: Tensor = sampler.probabilities
rows = dasgrad.SparseRows([0, 1], [0], [1.0], num_columns=3)
dense: Tensor = rows.to_dense()
dasgrad.save_checkpoint("run.pt", model=model, optimizer=optimizer, scheduler=scheduler, loader=loader, extra={"a": 1})
extra: dict[str, object] = dasgrad.load_checkpoint("run.pt", model=model, optimizer=optimizer, loader=loader)
dasgrad.save_checkpoint("run.pt", scaler=torch.amp.GradScaler("cpu"), sampler=sampler)
