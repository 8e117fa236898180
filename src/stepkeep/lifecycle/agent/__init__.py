"""The work of coding agents as their hooks tell of it: what is saved at which moment, and what is offered again."""
