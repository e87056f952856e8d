"""The aggregation core: where updates are summed. world.py is a world of one process."""
