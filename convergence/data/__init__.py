"""Data: embedded sets that need no download, and loaders of the real formats.

A set is a frozen value with arrays of both splits; what a step takes of it is decided
elsewhere. Nothing here may know a model or import `amp` but for its errors.
"""
