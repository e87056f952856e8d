"""Floor 2: the cloud: coordinator, firewall, ledger, aggregation core."""
