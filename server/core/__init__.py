"""The aggregation core: where updates are summed."""
