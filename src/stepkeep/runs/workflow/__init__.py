"""Workflow files: what stands in them, how they are read and checked, and how one step of them is done.

The order of the steps, retries, leases and saves are those of every plan: `stepkeep.runs` has them.
"""
