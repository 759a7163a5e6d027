"""What `amp run` puts on the path of the job; only `sitecustomize`, no code here."""
