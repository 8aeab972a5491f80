"""What runs at a site: the hub, its trainers, and the data they train on."""
