"""Project files beside the state: capture, compare, restore."""
