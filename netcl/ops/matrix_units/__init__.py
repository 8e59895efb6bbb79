"""Matrix units of GPUs: products by NVIDIA's mma.sync and wgmma instructions behind the ordinary ops."""
