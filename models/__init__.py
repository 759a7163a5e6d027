"""Plain float32 models, one architecture a file: what tests and benchmarks train.

Each file has `build(**sizes) -> keras.Model` (logits out), `example_batch(batch, seed,
**sizes) -> (x, y)` and `LOSS()`, so that one loop trains any of them; `default_boxes`
is what SSD does besides layers. Nothing here may import `amp` or name a 16-bit type:
the plugin must work on models that do not know it.
"""
