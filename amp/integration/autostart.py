"""Where `.pth` files of earlier installations find `install`; nothing else."""

from amp.integration.launch.autostart import install as install
