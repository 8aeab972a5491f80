"""The variables of the environment that atoll reads, for the reference and for `man atoll`."""

from __future__ import annotations

VARIABLES = {
    "ATOLL_HOME": "what this machine keeps (default `./.atoll`): projections, exports, sites, "
    "logs, the local broker. Node-local; a cache except for credentials and the broker",
    "ATOLL_BROKER": "URL of the broker, where `--broker` is not given",
    "ATOLL_CREDS": "file of credentials that the broker's operator issued, where `--creds` is not "
    "given",
    "ATOLL_MAX_RATE": "most bytes a second for blobs, where `--max-rate` is not given",
    "ATOLL_COORDINATOR": "a coordinator's settings, where `coordinate --config` is not given",
    "ATOLL_SITES": "the sites file of `place` and `site script`, where `--sites` is not given",
    "ATOLL_NATS_SERVER": "the nats-server to run in place of the one that is installed with atoll",
    "AWS_ACCESS_KEY_ID": "and `AWS_SECRET_ACCESS_KEY`, `AWS_PROFILE`, `AWS_ENDPOINT_URL`, ...: for "
    "a run whose blobs are in object storage",
    "HTTPS_PROXY": "and `NO_PROXY`: for websockets to the broker",
    "NO_COLOR": "any value: no colours",
}
