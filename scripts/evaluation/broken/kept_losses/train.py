"""A loop that keeps a figure of each step for a chart, with the graph that it hangs on.

After https://github.com/microsoft/SpareNet/issues/12.
"""

import torch

model = torch.nn.Sequential(
    *(torch.nn.Sequential(torch.nn.Linear(2048, 2048), torch.nn.GELU()) for _ in range(8))
).cuda()
optimizer = torch.optim.AdamW(model.parameters())
distances = []
for _ in range(200):
    rows = torch.randn(2048, 2048, device="cuda")
    model(rows).pow(2).mean().backward()
    distance = model(rows).abs().mean()
    distances.append(distance)
    optimizer.step()
    optimizer.zero_grad()
print(sum(distances))
