"""What runs at a site: hub, trainer, corpus, model, checkpoints."""
