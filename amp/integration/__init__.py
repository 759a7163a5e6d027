"""The rooms that know TensorFlow's private names: hooks in, twins out.

No algorithm may enter.
"""
