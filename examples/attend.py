# SPDX-License-Identifier: Apache-2.0
"""Attention under two metrics, its gradient, and how many keys a row really looks at.

PYTHONPATH=build/python /usr/bin/python3 examples/attend.py
"""
import torch

import foci

torch.manual_seed(0)
q, k, v, v_below = torch.randn(4, 1, 8, 197, 64)  # each (batch, heads, tokens, size)
q.requires_grad_()

for metric in ("dot", "layer-change"):
    o, stats = foci.attend(q, k, v, metric=metric, v_prev=v_below, return_stats=True)
    (gradient,) = torch.autograd.grad(o.square().mean(), q)
    print(f"{metric}: |o| {o.norm():.1f}, |dq| {gradient.norm():.2e}")
    print(stats.summary())
