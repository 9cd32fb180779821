#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# tests/models/make_timm_vit.py FILE: weights, images and logits of a small vision transformer of
# timm's, for tests/models/vit_test.cpp. Needs timm and safetensors.
import sys

import torch
from safetensors.torch import save_file
from timm.models.vision_transformer import VisionTransformer


def main():
    torch.manual_seed(0)
    model = VisionTransformer(img_size=16, patch_size=4, in_chans=3, num_classes=5, embed_dim=16,
                              depth=3, num_heads=2).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # its own start is nearly uniform attention
            parameter.add_(0.3 * torch.randn_like(parameter))
        images = torch.randn(4, 3, 16, 16)
        tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        tensors.update(images=images, logits=model(images))
    save_file(tensors, sys.argv[1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
