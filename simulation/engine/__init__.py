"""The engine: cohorts trained by the fastest tier that can, the rest as in a deployment.

work.py is what a round asks of a tier, and what a tier hands over.
"""
