"""The only room that speaks to NATS: server, streams, log and blobs on JetStream."""
