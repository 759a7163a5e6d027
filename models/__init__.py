"""Plain float32 models, one architecture a file: what tests and benchmarks train.

Each file has `build(**sizes) -> keras.Model` and `example_batch(batch, seed, **sizes)
-> (x, y)`. Where `LOSS` is, `LOSS()(y, model(x))` is what is trained, so that one loop
trains any of them; Faster R-CNN and the progressive GAN, whose losses are no function
of one output, have functions for them instead. What several architectures share, and
what they do besides layers, has files of its own. Nothing here may import `amp` or name
a 16-bit type: the plugin must work on models that do not know it.
"""
