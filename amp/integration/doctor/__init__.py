"""What `amp doctor` looks at: the machine, TensorFlow, our hooks, and a test of all.

`checkup` has the checks in their order. No check changes a setting or a file.
Before it: all other rooms. After it: `amp.cli`.
"""
