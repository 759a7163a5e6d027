"""The op table: one row per op type with all its facts, the reasons and their sources.

No graph is walked and nothing is decided here; other folders look rows up.
Before it: `graph`, for shapes. After it: every folder that needs facts about an op.
"""
