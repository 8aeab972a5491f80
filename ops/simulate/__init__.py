"""`atoll simulate`: the real coordinator, hubs, fold and policies in a seeded virtual world."""
