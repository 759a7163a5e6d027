"""What is measured: rewriting, calls, and whole training steps."""
