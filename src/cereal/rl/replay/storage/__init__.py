"""How items, and their priorities, lie in memory: a ring or a reservoir, and a sum tree."""
