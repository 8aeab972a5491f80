"""What a coordinator tells machines of its run: metrics to be scraped, alerts to be sent."""
