"""The virtual clock: who is asked, who arrives, and when, before anybody trains."""
